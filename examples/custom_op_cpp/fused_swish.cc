// Two operators of the domain "example.ops", float32:
//
//   FusedSwish(x)                        y = x sigmoid(x)
//   FusedScaleSwish(x, scale, bias)      a = x scale + bias, y = a sigmoid(a)
//
// `scale` and `bias` have as many elements as the last dimension of x, or one. Each reads and
// writes memory once, where the separate operators take a pass each.

#include <algorithm>
#include <cstring>

#include "ort_api.h"

// A build for any machine that picks its own variant when it is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EACH_CPU
#endif

namespace {

constexpr size_t kChunk = 16384;  // elements a task: below this a second thread costs more
constexpr size_t kMostDims = 16;

// exp(x) for x <= 0 and down to -87: 2^n e^r with |r| <= ln(2) / 2, e^r by its Taylor polynomial
// of degree 6; the relative error is below 3e-7. Written so that a compiler makes vectors of it.
inline float exp_negative(float x) {
  x = std::max(x, -87.0f);
  const float shifted = x * 1.44269504f + 12582912.0f;  // rounds to an integer in the low bits
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  int32_t bits;
  std::memcpy(&bits, &p, sizeof bits);
  bits += static_cast<int32_t>(n) * (1 << 23);
  std::memcpy(&p, &bits, sizeof p);
  return p;
}

inline float swish(float a) {
  a = std::max(a, -88.0f);  // below, the result is 0 to 1e-36
  const float e = exp_negative(a < 0 ? a : -a);
  return a * (a < 0 ? e : 1.0f) / (1.0f + e);
}

EACH_CPU void plain(const float* x, float* y, size_t count) {
  for (size_t i = 0; i < count; ++i) y[i] = swish(x[i]);
}

EACH_CPU void scaled(const float* x, const float* scale, const float* bias, float* y,
                     size_t count) {
  for (size_t i = 0; i < count; ++i) y[i] = swish(x[i] * scale[i] + bias[i]);
}

EACH_CPU void scaled_alike(const float* x, float scale, float bias, float* y, size_t count) {
  for (size_t i = 0; i < count; ++i) y[i] = swish(x[i] * scale + bias);
}

struct Tensor {
  float* data = nullptr;
  size_t count = 0;
  size_t rank = 0;
  int64_t dims[kMostDims] = {};
};

#define TRY(call) \
  if (OrtStatus* wrong = (call)) return wrong

OrtStatus* read(const OrtApi* api, OrtKernelContext* context, size_t index, Tensor* found) {
  const OrtValue* value = nullptr;
  OrtTensorTypeAndShapeInfo* shape = nullptr;
  void* data = nullptr;
  TRY(ort::input(api, context, index, &value));
  TRY(ort::data(api, const_cast<OrtValue*>(value), &data));
  found->data = static_cast<float*>(data);
  TRY(ort::shape(api, value, &shape));
  OrtStatus* wrong = ort::rank(api, shape, &found->rank);
  if (!wrong && found->rank > kMostDims)
    wrong = ort::create_status(api, kInvalidArgument, "a tensor has more than 16 dimensions");
  if (!wrong) wrong = ort::dims(api, shape, found->dims, found->rank);
  if (!wrong) wrong = ort::elements(api, shape, &found->count);
  ort::release_shape(api, shape);
  return wrong;
}

OrtStatus* write(const OrtApi* api, OrtKernelContext* context, const Tensor& like, float** data) {
  OrtValue* value = nullptr;
  void* found = nullptr;
  TRY(ort::output(api, context, 0, like.dims, like.rank, &value));
  TRY(ort::data(api, value, &found));
  *data = static_cast<float*>(found);
  return nullptr;
}

// `scale` and `bias` are one number each, or both as long as a row of x; chunks are whole rows.
struct Work {
  Tensor x, scale, bias;
  float* y = nullptr;
  size_t row = 1, chunk = kChunk;
  bool affine = false;

  void part(size_t index) const {
    const size_t from = index * chunk, until = std::min(x.count, from + chunk);
    if (!affine) return plain(x.data + from, y + from, until - from);
    if (scale.count == 1) return scaled_alike(x.data + from, *scale.data, *bias.data, y + from,
                                              until - from);
    for (size_t at = from; at < until; at += row)
      scaled(x.data + at, scale.data, bias.data, y + at, row);
  }
};

void run(void* work, size_t index) { static_cast<Work*>(work)->part(index); }

OrtStatus* compute(const OrtApi* api, OrtKernelContext* context, bool affine) {
  Work work;
  work.affine = affine;
  TRY(read(api, context, 0, &work.x));
  if (affine) {
    TRY(read(api, context, 1, &work.scale));
    TRY(read(api, context, 2, &work.bias));
    work.row = work.x.rank ? static_cast<size_t>(work.x.dims[work.x.rank - 1]) : 1;
    const size_t held = work.scale.count;
    if (held != work.bias.count || (held != 1 && held != work.row))
      return ort::create_status(api, kInvalidArgument,
                                "FusedScaleSwish: scale and bias must have one element each, or "
                                "as many as the last dimension of x");
    work.row = std::max<size_t>(1, work.row);
  }
  TRY(write(api, context, work.x, &work.y));
  work.chunk = work.row * std::max<size_t>(1, kChunk / work.row);
  const size_t tasks = (work.x.count + work.chunk - 1) / work.chunk;
  if (tasks > 1) return ort::parallel_for(api, context, run, tasks, 0, &work);
  if (tasks == 1) work.part(0);
  return nullptr;
}

struct Operator : OrtCustomOp {
  const char* name;
  bool affine;

  Operator(const char* called, bool takes_scale) : OrtCustomOp{}, name(called), affine(takes_scale) {
    version = 16;
    CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo*,
                        void** kernel) -> OrtStatus* {
      *kernel = new Kernel{api, static_cast<const Operator*>(op)->affine};
      return nullptr;
    };
    GetName = [](const OrtCustomOp* op) { return static_cast<const Operator*>(op)->name; };
    GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
    GetInputType = [](const OrtCustomOp*, size_t) { return kFloat; };
    GetInputTypeCount = [](const OrtCustomOp* op) -> size_t {
      return static_cast<const Operator*>(op)->affine ? 3 : 1;
    };
    GetOutputType = [](const OrtCustomOp*, size_t) { return kFloat; };
    GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
    KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
      const auto* own = static_cast<Kernel*>(kernel);
      return compute(own->api, context, own->affine);
    };
    KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
    GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return kRequired; };
    GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return kRequired; };
    GetInputMemoryType = [](const OrtCustomOp*, size_t) { return kDefaultMemory; };
  }

  struct Kernel {
    const OrtApi* api;
    bool affine;
  };
};

const Operator kSwish("FusedSwish", false), kScaleSwish("FusedScaleSwish", true);

}  // namespace

// onnxruntime calls this when the library is registered with a session's options.
extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(kOrtApiVersion);
  if (api == nullptr) {  // older than 1.17: the first version's table says why
    return ort::create_status(base->GetApi(1), kInvalidArgument, "onnxruntime is older than 1.17");
  }
  OrtCustomOpDomain* domain = nullptr;  // lives as long as the process: sessions refer to it
  TRY(ort::create_domain(api, "example.ops", &domain));
  TRY(ort::add_to_domain(api, domain, &kSwish));
  TRY(ort::add_to_domain(api, domain, &kScaleSwish));
  return ort::add_domain(api, options, domain);
}
