"""More models as strangers bring them: versions, folding, advice, samples that are made up."""

from __future__ import annotations

import numpy as np

from tests.strangers import (
    ALL,
    EXACT,
    FUNCTION,
    HALF,
    OWN,
    PICKS,
    Outcomes,
    Stranger,
    head,
    normal,
    samples,
)

KERNELS = {"w": normal(8, 8, 3, 3, scale=0.1), "v": normal(8, 8, 3, 3, scale=0.1, seed=1)}
OLD: Outcomes = HALF | {
    "apply M raise-opset -o O": 100.0,
    "apply M int8-static --data D -o O --force": 20.0,
    "apply M int8-dynamic(conv=true) -o O --force": 20.0,
    "convert M O --precision int8 --data D": 20.0,
}
NEW: Outcomes = {"apply M lower-opset(to=26) -o O": 100.0, "convert M O": "does not load"}
OPSETS = [
    Stranger(
        "opset 7: Dropout and a linear Upsample by attribute, one kernel for two layers",
        f"""{head(7, 3)} g (float[1,8,6,6] x) => (float[1,8,12,12] y) {{
        a = Conv<pads = [1, 1, 1, 1]>(x, w) d = Dropout<ratio = 0.5>(a)
        u = Upsample<mode = "linear", scales = [1.0, 1.0, 2.0, 2.0]>(d)
        y = Conv<pads = [1, 1, 1, 1]>(u, w) }}""",
        {"w": KERNELS["w"]},
        samples(x=(1, 8, 6, 6)),
        OLD,
    ),
    Stranger(
        "opset 10: Resize in two branches",
        f"""{head(10, 5)} g (float[1,8,6,6] x, bool c) => (float[1,8,9,9] y)
        <float[4] s = {{1, 1, 1.5, 1.5}}> {{ a = Conv<pads = [1, 1, 1, 1]>(x, w)
        y = If(c) <then_branch = t () => (float[1,8,9,9] p) {{
            u = Resize<mode = "linear">(a, s) p = Conv<pads = [1, 1, 1, 1]>(u, v) }},
          else_branch = f () => (float[1,8,9,9] q) {{ n = Neg(a)
            k = Resize<mode = "nearest">(n, s) q = Conv<pads = [1, 1, 1, 1]>(k, v) }}> }}""",
        KERNELS,
        samples(x=(1, 8, 6, 6), c=()),
        OLD,
        external=True,
    ),
    Stranger(
        "opset 9: an LSTM between attributes that became inputs",
        f"""{head(9, 4)} g (float[t,1,8] x) => (float[t,1,1,16] y) {{
        a, h, c = LSTM<hidden_size = 16>(x, w, q) s = Squeeze<axes = [1]>(a)
        k = Slice<starts = [0], ends = [99], axes = [0]>(s) z = MatMul(k, v)
        y = Unsqueeze<axes = [1]>(z) }}""",
        {
            "w": normal(1, 64, 8, scale=0.3),
            "q": normal(1, 64, 16, scale=0.3),
            "v": normal(16, 16, scale=0.3),
        },
        samples(x=(5, 1, 8)),
        OLD,
    ),
    Stranger(
        "opset 28: Swish and Gelu in branches",
        f"""{head(28, 14)} g (float[b,32] x, bool c) => (float[b,32] y) {{ h = MatMul(x, w)
        y = If(c) <then_branch = t () => (float[b,32] p) {{ p = Swish(h) }},
          else_branch = f () => (float[b,32] q) {{ n = Gelu(h) q = MatMul(n, w) }}> }}""",
        {"w": normal(32, 32, scale=0.2)},
        samples(x=(2, 32), c=()),
        NEW,
    ),
    Stranger(
        "opset 28: SwiGLU in a function",
        """<ir_version: 14, opset_import: ["": 28, "own": 1]>
        g (float[b,32] x) => (float[b,32] y) { h = own.f(x, w) y = own.f(h, w) }
        <opset_import: ["": 28], domain: "own"> f (x, w) => (y) {
          m = MatMul(x, w) y = SwiGLU(m, m) }""",
        {"w": normal(32, 32, scale=0.2)},
        samples(x=(2, 32)),
        NEW,
        external=True,
    ),
]

FOLDED: Outcomes = {"convert M O": 100.0, "apply M simplify -o O": 100.0}
FOLDS = [
    Stranger(
        "int8 weights that two layers read through one DequantizeLinear",
        """g (float[b,1024] x) => (float[b,1024] y) <float s = {0.001}, int8 z = {0}> {
        d = DequantizeLinear(w, s, z) m = MatMul(x, d) h = Relu(m) y = MatMul(h, d) }""",
        {"w": np.random.default_rng(1).integers(-99, 99, (1024, 1024)).astype("i1")},
        samples(2, x=(2, 1024)),
        FOLDED,
        share=1.1,
    ),
    Stranger(
        "float16 weights behind casts",
        """g (float[b,1024] x) => (float[b,1024] y) { d = Cast<to = 1>(w) m = MatMul(x, d)
        h = Relu(m) e = Cast<to = 1>(w) y = MatMul(h, e) }""",
        {"w": normal(1024, 1024, scale=0.03, dtype="f2")},
        samples(2, x=(2, 1024)),
        FOLDED,
        external=True,
        share=1.1,
    ),
    Stranger(
        "rows of a unit matrix in a function",
        f"""{OWN} g (int64[b] i, float[b,1500] x) => (float[b,1500] y) {{ y = own.f(i, x) }}
        {FUNCTION} f (i, x) => (y) {{ s = Constant<value = int64[2] {{1500, 1500}}>()
          c = ConstantOfShape<value = float[1] {{1}}>(s) e = EyeLike(c) g = Gather(e, i)
          y = Add(g, x) }}""",
        {},
        [{"i": PICKS.integers(0, 1500, 2), "x": normal(2, 1500, seed=k)} for k in range(2)],
        FOLDED,
        share=1.1,
    ),
    Stranger(
        "Tile of float64 in a loop",
        """g (double[b,32] dx) => (double[b,32] y)
        <int64 n = {2}, bool go = {1}, int64[2] r = {32, 40000}, double[1,1] one = {0.5}> {
        y = Loop(n, go, dx) <body = b (int64 i, bool c, double[b,32] h) =>
            (bool d, double[b,32] o) { d = Identity(c) t = Tile(one, r) m = MatMul(h, t)
          k = ReduceMax<axes = [1], keepdims = 1>(m) o = Add(h, k) }> }""",
        {},
        samples(2, dx=(2, 32)),
        FOLDED,
        share=1.1,
    ),
]

ML = head(9, 4, ai_onnx_ml=1)
FOREST = """nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], nodes_featureids = [0, 0, 0],
 nodes_values = [0.5, 0.0, 0.0], nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"],
 nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0]"""
RUN: Outcomes = ALL | {"convert M O --precision int8": "to quantize"}
ADVICE = [
    Stranger(
        "a forest in opset 9",
        f"""{ML} g (float[b,3] x) => (int64[b] l, float[b,2] p) {{
          l, p = ai.onnx.ml.TreeEnsembleClassifier<{FOREST}, class_treeids = [0, 0],
            class_nodeids = [1, 2], class_ids = [0, 1], class_weights = [1.0, 1.0],
            classlabels_int64s = [0, 1], post_transform = "NONE">(x) }}""",
        {},
        samples(x=(4, 3)),
        RUN,
        unsaid="raise-opset",
    ),
    Stranger(
        "a regression of trees between standard operators",
        f"""{ML} g (float[b,3] x) => (float[b,1] y) {{ a = ai.onnx.ml.Scaler<
            offset = [0.1, 0.2, 0.3], scale = [1.0, 2.0, 3.0]>(x)
          e = ai.onnx.ml.TreeEnsembleRegressor<{FOREST}, target_treeids = [0, 0],
            target_nodeids = [1, 2], target_ids = [0, 0], target_weights = [1.0, 2.0],
            n_targets = 1>(a) y = Sigmoid(e) }}""",
        {},
        samples(x=(4, 3)),
        RUN,
        unsaid="invalid",
    ),
    Stranger(
        "a linear classifier that answers with a map",
        f"""{ML} g (float[b,3] x) => (seq(map(int64, float)) y, int64[b] l) {{
          l, p = ai.onnx.ml.LinearClassifier<coefficients = [1.0, 2.0, 3.0, -1.0, -2.0, -3.0],
            intercepts = [0.0, 0.1], classlabels_ints = [0, 1]>(x)
          y = ai.onnx.ml.ZipMap<classlabels_int64s = [0, 1]>(p) }}""",
        {},
        samples(x=(4, 3)),
        dict.fromkeys(ALL, "is a map, not a tensor"),
    ),
    Stranger(
        "onnxruntime's own operators in branches",
        f"""{head(17, com_microsoft=1)} g (float[b,32] x, bool c) => (float[b,32] y) {{
          h = MatMul(x, w)
          y = If(c) <
            then_branch = t () => (float[b,32] p) {{ p = com.microsoft.BiasGelu(h, k) }},
            else_branch = f () => (float[b,32] q) {{ q = com.microsoft.FastGelu(h, k) }}> }}""",
        {"w": normal(32, 32), "k": normal(32, seed=1)},
        samples(x=(2, 32), c=()),
        ALL | {"convert M O --precision int8": 20.0},
        unsaid="invalid",
    ),
    Stranger(
        "onnxruntime's own operators in a function, called twice",
        """<ir_version: 8, opset_import: ["": 17, "own": 1, "com.microsoft": 1]>
        g (float[b,32] x) => (float[b,32] y) { h = own.f(x, w) y = own.f(h, w) }
        <opset_import: ["": 17, "com.microsoft": 1], domain: "own"> f (x, w) => (y) {
          m = com.microsoft.FusedMatMul<transB = 1, alpha = 0.2>(x, w)
          y = com.microsoft.QuickGelu<alpha = 1.702>(m) }""",
        {"w": normal(32, 32)},
        samples(x=(2, 32)),
        RUN,
        unsaid="invalid",
    ),
    Stranger(
        "a Clip to below zero in a loop, of an old opset",
        f"""{head(9, 5)} g (float[4,8] x) => (float[4,8] y) <int64 n = {{2}}, bool go = {{1}}> {{
        y = Loop(n, go, x) <body = b (int64 i, bool c, float[4,8] h) => (bool d, float[4,8] o) {{
          d = Identity(c) r = Relu(h) k = Clip<min = -3.0, max = -1.0>(r) m = MatMul(k, w)
          o = Add(m, h) }}> }}""",
        {"w": normal(8, 8)},
        samples(x=(4, 8)),
        EXACT,
        "FuseReluClip keeps",
    ),
    Stranger(
        "a Clip of float64 in a function",
        f"""{OWN} g (double[b,8] dx) => (double[b,8] y) <double l = {{-1}}, double u = {{1}}> {{
          h = own.f(dx, l, u) m = MatMul(h, w) y = own.f(m, l, u) }}
        {FUNCTION} f (x, l, u) => (y) {{ r = Relu(x) y = Clip(r, l, u) }}""",
        {"w": normal(8, 8, dtype="f8")},
        samples(dx=(4, 8)),
        EXACT,
        "FuseReluClip keeps",
        external=True,
    ),
    Stranger(
        "a Pad beyond the kernel in branches",
        """g (float[b,3,8,8] x, bool c) => (float[b,3,9,8] y)
        <int64[8] p = {0, 0, 2, 0, 0, 0, 0, 1}> {
        y = If(c) <then_branch = t () => (float[b,3,9,8] u) { a = Pad(x, p)
            u = AveragePool<kernel_shape = [2, 2]>(a) },
          else_branch = f () => (float[b,3,9,8] v) { n = Neg(x) e = Pad(n, p)
            v = AveragePool<kernel_shape = [2, 2]>(e) }> }""",
        {},
        samples(x=(1, 3, 8, 8), c=()),
        EXACT,
        "Pad_Fusion keeps",
    ),
]

SPEED = "bench M --time 0.1s --sets 1 --threads 1"
MADE_UP = [
    Stranger(
        "rows that a function picks behind a cast",
        f"""{OWN} g (int64[b,t] i) => (float[b,t,8] y) {{ e = own.f(i, t) y = MatMul(e, w) }}
        {FUNCTION} f (i, t) => (y) {{ c = Cast<to = 6>(i) y = Gather(t, c) }}""",
        {"t": normal(7, 8), "w": normal(8, 8)},
        [],
        {"convert M O": 0.0, SPEED: 0.0},
        "0..6",
    ),
    Stranger(
        "rows that a loop and a scan pick",
        """g (int64[5,b] i, int64[b] s) => (float[b,8] y, float[5,b,8] z)
        <int64 n = {2}, bool go = {1}, int64[1] at = {0}> {
        z = Scan<num_scan_inputs = 1, body = q (int64[b] k) => (float[b,8] u) {
          u = Gather(t, k) }>(i)
        a, v = Loop(n, go, s) <body = b (int64 k, bool c, int64[b] h) =>
            (bool d, int64[b] o, float[b,8] w) {
          d = Identity(c) o = Identity(h) w = Gather(t, h) }>
        y = ReduceSum<keepdims = 0>(v, at) }""",
        {"t": normal(7, 8)},
        [],
        {"convert M O": 0.0, SPEED: 0.0},
        "0..6",
    ),
    Stranger(
        "rows at an offset, places to write at, and pictures that boxes are of",
        """g (int64[b,t] i, float[b,32] x, int64[b,1] p, float[b,4,16,16] v, float[n,4] o,
        int64[n] k) => (float[b,t,8] y, float[b,32] z, float[n,4,7,7] w)
        <int64 two = {2}, int64[1] a = {0}, int64[1] e = {1}> {
        h = Add(i, two) y = Gather(t, h) f = Slice(x, a, e, e)
        z = ScatterElements<axis = 1>(x, p, f)
        w = RoiAlign<output_height = 7, output_width = 7>(v, o, k) }""",
        {"t": normal(7, 8)},
        [],
        {"convert M O": 0.0, SPEED: 0.0},
        "0..31",
    ),
]

INTEGER = {"w": np.random.default_rng(2).integers(-99, 99, (64, 64)).astype("i1")}
NOTHING_FLOAT = [
    Stranger(
        "integers in a loop",
        """g (float[b,64] x) => (float[b,64] y)
        <int64 n = {2}, bool go = {1}, int8 z = {0}, float s = {0.01}> {
        y = Loop(n, go, x) <body = b (int64 i, bool c, float[b,64] h) => (bool d, float[b,64] o) {
          d = Identity(c) q, t, u = DynamicQuantizeLinear(h) m = MatMulInteger(q, w, u, z)
          f = Cast<to = 1>(m) k = Mul(t, s) g = Mul(f, k) o = Tanh(g) }> }""",
        INTEGER,
        samples(x=(2, 64)),
        ALL,
    ),
    Stranger(
        "weights of 4 bits in branches",
        f"""{head(17, com_microsoft=1)} g (float[b,64] x, bool c) => (float[b,64] y) {{
        y = If(c) <then_branch = t () => (float[b,64] p) {{
            p = com.microsoft.MatMulNBits<K = 64, N = 64, bits = 4, block_size = 32>(x, w, s) }},
          else_branch = f () => (float[b,64] q) {{ n = Neg(x)
            q = com.microsoft.MatMulNBits<K = 64, N = 64, bits = 4, block_size = 32>(n, w, s) }}>
        }}""",
        {
            "w": np.random.default_rng(2).integers(0, 255, (64, 2, 16)).astype("u1"),
            "s": np.full(128, 0.01, "f4"),
        },
        samples(x=(2, 64), c=()),
        ALL,
    ),
    Stranger(
        "a forest in a function",
        f"""<ir_version: 8, opset_import: ["": 17, "own": 1, "ai.onnx.ml": 3]>
        g (float[b,3] x) => (float[b,1] y) {{ y = own.f(x) }}
        <opset_import: ["": 17, "ai.onnx.ml": 3], domain: "own"> f (x) => (y) {{
          y = ai.onnx.ml.TreeEnsembleRegressor<{FOREST}, target_treeids = [0, 0],
            target_nodeids = [1, 2], target_ids = [0, 0], target_weights = [1.0, 2.0],
            n_targets = 1>(x) }}""",
        {},
        samples(x=(4, 3)),
        ALL,
    ),
    Stranger(
        "words",
        f"""{head(17, ai_onnx_ml=3)} g (string[b,8] x) => (float[b,3] y) {{
        f = ai.onnx.ml.LabelEncoder<keys_strings = ["a", "b", "c"], values_int64s = [0, 1, 2],
            default_int64 = 0>(x)
        y = TfIdfVectorizer<mode = "TF", min_gram_length = 1, max_gram_length = 1,
            max_skip_count = 0, ngram_counts = [0], ngram_indexes = [0, 1, 2],
            pool_int64s = [0, 1, 2]>(f) }}""",
        {},
        [],
        {"inspect M": 0.0, "convert M O": 0.0},
    ),
]
