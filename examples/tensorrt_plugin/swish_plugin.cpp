// Swish, y = x * sigmoid(x), as a plug-in of TensorRT 10 and 11: IPluginV3 and its creator.
//
// Written from NVIDIA's documentation; never compiled against its headers nor run where ortune is
// developed: only the kernel was compiled (CMakeLists.txt says when it is not built).

#include <NvInfer.h>
#include <cuda_runtime_api.h>

#include <cstdint>

void swish(void const* x, void* y, int64_t count, bool half, cudaStream_t stream);

namespace {

using namespace nvinfer1;

constexpr char kName[] = "Swish";
constexpr char kVersion[] = "1";    // what the ONNX parser looks for unless a node says another
constexpr char kNamespace[] = "";

// One object has all three capabilities: it knows nothing that differs between build and run.
class Swish final : public IPluginV3,
                    public IPluginV3OneCore,
                    public IPluginV3OneBuild,
                    public IPluginV3OneRuntime {
public:
    IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept override {
        switch (type) {
        case PluginCapabilityType::kBUILD: return static_cast<IPluginV3OneBuild*>(this);
        case PluginCapabilityType::kRUNTIME: return static_cast<IPluginV3OneRuntime*>(this);
        case PluginCapabilityType::kCORE: return static_cast<IPluginV3OneCore*>(this);
        }
        return nullptr;
    }

    IPluginV3* clone() noexcept override { return new Swish(); }

    char const* getPluginName() const noexcept override { return kName; }
    char const* getPluginVersion() const noexcept override { return kVersion; }
    char const* getPluginNamespace() const noexcept override { return kNamespace; }

    // --- while an engine is built ---

    int32_t getNbOutputs() const noexcept override { return 1; }

    int32_t configurePlugin(DynamicPluginTensorDesc const*, int32_t, DynamicPluginTensorDesc const*,
                            int32_t) noexcept override {
        return 0;
    }

    // float32 or float16 in plain order, and the output as the input.
    bool supportsFormatCombination(int32_t pos, DynamicPluginTensorDesc const* inOut, int32_t,
                                   int32_t) noexcept override {
        auto const& one = inOut[pos].desc;
        if (one.format != PluginFormat::kLINEAR) return false;
        if (pos > 0) return one.type == inOut[0].desc.type;
        return one.type == DataType::kFLOAT || one.type == DataType::kHALF;
    }

    int32_t getOutputDataTypes(DataType* outputs, int32_t, DataType const* inputs,
                               int32_t) const noexcept override {
        outputs[0] = inputs[0];
        return 0;
    }

    int32_t getOutputShapes(DimsExprs const* inputs, int32_t, DimsExprs const*, int32_t,
                            DimsExprs* outputs, int32_t, IExprBuilder&) noexcept override {
        outputs[0] = inputs[0];
        return 0;
    }

    // --- while it runs ---

    int32_t onShapeChange(PluginTensorDesc const*, int32_t, PluginTensorDesc const*,
                          int32_t) noexcept override {
        return 0;
    }

    int32_t enqueue(PluginTensorDesc const* in, PluginTensorDesc const*, void const* const* inputs,
                    void* const* outputs, void*, cudaStream_t stream) noexcept override {
        int64_t count = 1;
        for (int32_t axis = 0; axis < in[0].dims.nbDims; ++axis) count *= in[0].dims.d[axis];
        swish(inputs[0], outputs[0], count, in[0].type == DataType::kHALF, stream);
        return cudaGetLastError() == cudaSuccess ? 0 : 1;
    }

    IPluginV3* attachToContext(IPluginResourceContext*) noexcept override { return clone(); }

    PluginFieldCollection const* getFieldsToSerialize() noexcept override { return &fields_; }

private:
    PluginFieldCollection fields_{0, nullptr};
};

class SwishCreator final : public IPluginCreatorV3One {
public:
    char const* getPluginName() const noexcept override { return kName; }
    char const* getPluginVersion() const noexcept override { return kVersion; }
    char const* getPluginNamespace() const noexcept override { return kNamespace; }
    PluginFieldCollection const* getFieldNames() noexcept override { return &fields_; }

    IPluginV3* createPlugin(char const*, PluginFieldCollection const*,
                            TensorRTPhase) noexcept override {
        return new Swish();
    }

private:
    PluginFieldCollection fields_{0, nullptr};
};

}  // namespace

// What IPluginRegistry::loadLibrary and trtexec --dynamicPlugins look for in a library.
extern "C" void setLoggerFinder(nvinfer1::ILoggerFinder*) {}

extern "C" nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count) {
    static SwishCreator creator;
    static nvinfer1::IPluginCreatorInterface* const creators[] = {&creator};
    count = 1;
    return creators;
}
