package ai.onnxruntime;

import java.util.Map;
import java.util.Optional;

public class OrtSession implements AutoCloseable {
  public Result run(Map<String, ? extends OnnxTensorLike> inputs) throws OrtException {
    throw new OrtException();
  }

  @Override
  public void close() throws OrtException {}

  public static class Result implements AutoCloseable {
    public Optional<OnnxValue> get(String key) {
      return Optional.empty();
    }

    @Override
    public void close() {}
  }

  public static class SessionOptions implements AutoCloseable {
    public enum OptLevel {
      NO_OPT,
      BASIC_OPT,
      EXTENDED_OPT,
      ALL_OPT
    }

    public enum ExecutionMode {
      SEQUENTIAL,
      PARALLEL
    }

    public void setExecutionMode(ExecutionMode mode) throws OrtException {}

    public void setOptimizationLevel(OptLevel level) throws OrtException {}

    public void setInterOpNumThreads(int numThreads) throws OrtException {}

    public void setIntraOpNumThreads(int numThreads) throws OrtException {}

    public void setMemoryPatternOptimization(boolean on) throws OrtException {}

    public void setCPUArenaAllocator(boolean useArena) throws OrtException {}

    public void addConfigEntry(String configKey, String configValue) throws OrtException {}

    @Override
    public void close() {}
  }
}
