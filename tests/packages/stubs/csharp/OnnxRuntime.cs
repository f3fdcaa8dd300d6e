using System;
using System.Collections.Generic;

namespace Microsoft.ML.OnnxRuntime.Tensors
{
    public enum TensorElementType
    {
        Float = 1, UInt8 = 2, Int8 = 3, UInt16 = 4, Int16 = 5, Int32 = 6, Int64 = 7, String = 8,
        Bool = 9, Float16 = 10, Double = 11, UInt32 = 12, UInt64 = 13,
    }
}

namespace Microsoft.ML.OnnxRuntime
{
    using Microsoft.ML.OnnxRuntime.Tensors;

    public enum GraphOptimizationLevel
    {
        ORT_DISABLE_ALL = 0, ORT_ENABLE_BASIC = 1, ORT_ENABLE_EXTENDED = 2, ORT_ENABLE_ALL = 99,
    }

    public enum ExecutionMode { ORT_SEQUENTIAL = 0, ORT_PARALLEL = 1 }

    public enum OrtAllocatorType { DeviceAllocator = 0, ArenaAllocator = 1 }

    public enum OrtMemType { Default = 0 }

    public class SessionOptions : IDisposable
    {
        public int IntraOpNumThreads { get; set; }
        public int InterOpNumThreads { get; set; }
        public ExecutionMode ExecutionMode { get; set; }
        public GraphOptimizationLevel GraphOptimizationLevel { get; set; }
        public bool EnableCpuMemArena { get; set; }
        public bool EnableMemoryPattern { get; set; }
        public void AddSessionConfigEntry(string configKey, string configValue) { }
        public void Dispose() { }
    }

    public class RunOptions : IDisposable
    {
        public void Dispose() { }
    }

    public class OrtArenaCfg : IDisposable
    {
        public OrtArenaCfg(
            uint maxMemory, int arenaExtendStrategy, int initialChunkSizeBytes,
            int maxDeadBytesPerChunk) { }
        public void Dispose() { }
    }

    public class OrtMemoryInfo : IDisposable
    {
        public static readonly byte[] allocatorCPU = new byte[0];
        public OrtMemoryInfo(byte[] name, OrtAllocatorType type, int id, OrtMemType memory) { }
        public static OrtMemoryInfo DefaultInstance { get { return null; } }
        public void Dispose() { }
    }

    public sealed class OrtEnv
    {
        public static OrtEnv Instance() { return null; }
        public void CreateAndRegisterAllocator(OrtMemoryInfo memInfo, OrtArenaCfg arenaCfg) { }
    }

    /// Stands for System.Span<byte>, which mono's compiler does not have.
    public struct Bytes
    {
        public byte[] ToArray() { return null; }
    }

    public class OrtValue : IDisposable
    {
        public static OrtValue CreateTensorValueWithData(
            OrtMemoryInfo memInfo, TensorElementType elementType, long[] shape,
            IntPtr dataBufferPtr, long bufferLengthInBytes) { return null; }
        public Bytes GetTensorMutableRawData() { return new Bytes(); }
        public void Dispose() { }
    }

    public interface IDisposableReadOnlyCollection<T> : IReadOnlyList<T>, IDisposable { }

    public class InferenceSession : IDisposable
    {
        public InferenceSession(string modelPath, SessionOptions options) { }
        public IDisposableReadOnlyCollection<OrtValue> Run(
            RunOptions runOptions, IReadOnlyDictionary<string, OrtValue> inputs,
            IReadOnlyCollection<string> outputNames) { return null; }
        public void Dispose() { }
    }
}
