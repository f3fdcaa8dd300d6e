"""Models of several regions."""

import numpy as np
import onnx_ir as ir
from tests.unit.quantizing import model_of, normal

HEADER = '<ir_version: 8, opset_import: ["": 20]>'


def block(at: int) -> str:
    """Return a transformer's block without norms, from h{at} to h{at + 1}."""
    return f"""
      q{at} = MatMul(h{at}, wq{at})
      k{at} = MatMul(h{at}, wk{at})
      v{at} = MatMul(h{at}, wv{at})
      qb{at} = Add(q{at}, b{at})
      kt{at} = Transpose<perm=[0,2,1]>(k{at})
      s{at} = MatMul(qb{at}, kt{at})
      d{at} = Div(s{at}, root)
      p{at} = Softmax<axis=-1>(d{at})
      c{at} = MatMul(p{at}, v{at})
      o{at} = MatMul(c{at}, wo{at})
      r{at} = Add(o{at}, h{at})
      f{at} = MatMul(r{at}, w1{at})
      g{at} = Gelu(f{at})
      m{at} = MatMul(g{at}, w2{at})
      h{at + 1} = Add(m{at}, r{at})"""


def transformer(blocks: int) -> ir.Model:
    """Return a transformer of 32 channels whose nodes have no names."""
    text = f"{HEADER}\ng (float[1,8,32] h0) => (float[1,8,32] h{blocks}) {{"
    text += "".join(block(at) for at in range(blocks)) + "\n}"
    held = {"root": np.float32(4.0)}
    for at in range(blocks):
        held |= {f"w{name}{at}": normal(32, 32, seed=at) for name in "qkvo"}
        held |= {f"w1{at}": normal(32, 64, seed=at), f"w2{at}": normal(64, 32, seed=at)}
        held |= {f"b{at}": normal(32, seed=at)}
    return model_of(text, held)
