// The part of onnxruntime's C API that a library of custom operators needs.
//
// The onnxruntime wheel carries no headers. The C API is a table of function pointers whose order
// never changes: each version only appends (onnxruntime asserts the positions when it is built).
// So the few functions used here are named by their position in the table of version 17, which
// every onnxruntime from 1.17 on gives out.

#pragma once

#include <cstddef>
#include <cstdint>

struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;

constexpr uint32_t kOrtApiVersion = 17;
constexpr int kFloat = 1;     // ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
constexpr int kRequired = 0;  // INPUT_OUTPUT_REQUIRED
constexpr int kDefaultMemory = 0;  // OrtMemTypeDefault
constexpr int kInvalidArgument = 2;

struct OrtApi {
  void* table[276];
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

// The layout of version 16: later versions append callbacks that are optional. `version` says
// which of them are there. The second forms of creating and computing may fail with a status.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  int (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void* kernel, OrtKernelContext*);
  void (*KernelDestroy)(void* kernel);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext*);
};

// One function of the table, called as in `ort::create_domain(api, "my.ops", &domain)`.
template <int position, typename Result, typename... Arguments>
struct Entry {
  Result operator()(const OrtApi* api, Arguments... arguments) const {
    return reinterpret_cast<Result (*)(Arguments...)>(api->table[position])(arguments...);
  }
};

namespace ort {

template <int position, typename... Arguments>
using Call = Entry<position, OrtStatus*, Arguments...>;

constexpr Call<26, const char*, OrtCustomOpDomain**> create_domain;
constexpr Call<27, OrtCustomOpDomain*, const OrtCustomOp*> add_to_domain;
constexpr Call<28, OrtSessionOptions*, OrtCustomOpDomain*> add_domain;
constexpr Call<51, OrtValue*, void**> data;
constexpr Call<61, const OrtTensorTypeAndShapeInfo*, size_t*> rank;
constexpr Call<62, const OrtTensorTypeAndShapeInfo*, int64_t*, size_t> dims;
constexpr Call<64, const OrtTensorTypeAndShapeInfo*, size_t*> elements;
constexpr Call<65, const OrtValue*, OrtTensorTypeAndShapeInfo**> shape;
constexpr Call<90, const OrtKernelContext*, size_t, const OrtValue**> input;
constexpr Call<91, OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**> output;
constexpr Entry<0, OrtStatus*, int, const char*> create_status;
constexpr Entry<99, void, OrtTensorTypeAndShapeInfo*> release_shape;
constexpr Call<274, const OrtKernelContext*, void (*)(void*, size_t), size_t, size_t, void*>
    parallel_for;

}  // namespace ort
