// The kernel of the plug-in: a thread a value, arithmetic in float32.

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

__device__ float read(float const* x, int64_t at) { return x[at]; }
__device__ float read(__half const* x, int64_t at) { return __half2float(x[at]); }
__device__ void write(float* y, int64_t at, float value) { y[at] = value; }
__device__ void write(__half* y, int64_t at, float value) { y[at] = __float2half(value); }

template <typename T>
__global__ void swishEach(T const* x, T* y, int64_t count) {
    int64_t const at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        float const value = read(x, at);
        write(y, at, value / (1.0F + expf(-value)));
    }
}

template <typename T>
void launch(void const* x, void* y, int64_t count, cudaStream_t stream) {
    constexpr int kThreads = 256;
    auto const blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
    if (blocks > 0) {
        swishEach<<<blocks, kThreads, 0, stream>>>(static_cast<T const*>(x), static_cast<T*>(y), count);
    }
}

}  // namespace

void swish(void const* x, void* y, int64_t count, bool half, cudaStream_t stream) {
    if (half) {
        launch<__half>(x, y, count, stream);
    } else {
        launch<float>(x, y, count, stream);
    }
}
