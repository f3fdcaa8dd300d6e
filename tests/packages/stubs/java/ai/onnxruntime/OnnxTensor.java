package ai.onnxruntime;

import java.nio.ByteBuffer;

public class OnnxTensor extends OnnxTensorLike {
  public static OnnxTensor createTensor(
      OrtEnvironment environment, ByteBuffer data, long[] shape, OnnxJavaType type)
      throws OrtException {
    throw new OrtException();
  }

  public ByteBuffer getByteBuffer() {
    return null;
  }

  @Override
  public ValueInfo getInfo() {
    return null;
  }

  @Override
  public void close() {}
}
