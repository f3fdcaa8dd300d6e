package ai.onnxruntime;

public interface OnnxValue extends AutoCloseable {
  ValueInfo getInfo();

  @Override
  void close();
}
