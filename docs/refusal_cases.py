"""The cases of docs/refusals.md: the command or the call, and its model."""

from __future__ import annotations

import refusal_conversions as conversions
from onnx import TensorProto
from refusal_files import FILES, GRAPHS, TENSORS
from refusal_models import (
    STATIC,
    Case,
    call,
    cell,
    cell_state,
    computed,
    double,
    drop,
    external,
    function_of,
    insert,
    lens,
    more_inputs,
    no_shapes,
    node,
    reference,
    rename_input,
    rename_output,
    reshaped,
    sequence_input,
    set_attribute,
    some_steps,
    text,
    then,
    training,
    x,
)
from refusal_quantization import QUANTIZATION
from refusal_quantized import QUANTIZED
from refusal_states import STATES
from refusal_streams import PADDING, STREAMS
from refusal_targets import TARGET_FILES, TARGETS

FLOAT, UINT8, INT32 = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT32
BFLOAT16 = TensorProto.BFLOAT16
SCAN = "scan model.onnx -o out.onnx"
UNROLL = "unroll model.onnx -o out.onnx"
CONVERT = "convert model.onnx -o out.onnx --opset"
VERIFY = "verify other.onnx model.onnx --trials 1"


RECURRENT = [
    Case("an unknown attribute", SCAN, set_attribute("alpha", 1.0)),
    Case("an attribute of another version", SCAN, set_attribute("layout", 1), cell(opset=12)),
    Case("an attribute of another type", SCAN, set_attribute("clip", 3)),
    Case("a function's attribute outside of a function", SCAN, reference("clip", "threshold")),
    Case("direction", SCAN, set_attribute("direction", "backward")),
    Case("layout", SCAN, set_attribute("layout", 2)),
    Case("clip", SCAN, set_attribute("clip", 0.0)),
    Case("an unknown activation", SCAN, set_attribute("activations", ["Sigmoid", "Swish"]), cell("GRU")),
    Case("too few activations", SCAN, set_attribute("activations", ["Sigmoid", "Tanh"])),
    Case(
        "an activation without defaults",
        f"{SCAN} --semantics spec",
        set_attribute("activations", ["Sigmoid", "ScaledTanh"]),
        cell("GRU"),
    ),
    Case("hidden_size", SCAN, set_attribute("hidden_size", 0)),
    Case(
        "a hidden_size that nothing tells",
        SCAN,
        then(drop("hidden_size"), computed(1, 2, 3), no_shapes),
    ),
    Case("too many inputs", SCAN, more_inputs("", "", "W"), cell("RNN")),
    Case("no R", SCAN, rename_input(2, "")),
    Case("a type the operator lacks", SCAN, x(UINT8, "T", 1, 3)),
    Case("a type that only later operators have", SCAN, x(BFLOAT16, "T", 1, 3)),
    Case("types that differ", SCAN, double("W")),
    Case("types that nothing tells", SCAN, computed(0, 1, 2, 3)),
    Case("the type of sequence_lens", SCAN, lens(TensorProto.INT64)),
    Case("a length above that of X", f"{SCAN} --dim T=5", lens(INT32, 9)),
    Case("the rank of X", SCAN, x(FLOAT, "T", 3)),
    Case("the features of X", SCAN, x(FLOAT, "T", 1, 4)),
    Case("the shape of R", SCAN, set_attribute("hidden_size", 3)),
    Case(
        "a projection, as PyTorch writes it",
        SCAN,
        model=text(
            17,
            "float[T, 1, 3] X, float[1, 8, 3] W, float[1, 8, 2] R, float[1, 1, 8] C",
            "Y = LSTM <hidden_size = 2> (X, W, R, , , , C)",
        ),
    ),
    Case("a batch that is too large to write", SCAN, x(FLOAT, "T", 2**30, 3)),
    Case("a weight that cannot be computed", SCAN, reshaped(5, 5)),
]
LENGTHS = [
    Case("unknown when unrolling", UNROLL),
    Case("unknown and without a name", UNROLL, x(FLOAT, None, 1, 3)),
    Case("known at run time only", UNROLL, then(STATIC, some_steps)),
    Case("too long to unroll", UNROLL, x(FLOAT, 10**9, 1, 3)),
]
OPTIONS = [
    Case("--dim", f"{UNROLL} --dim T"),
    Case("a dimension that is not there", f"{UNROLL} --dim S=4"),
    Case("--input-shape", f"{UNROLL} --input-shape X"),
    Case("an input that is not there", f"{UNROLL} --input-shape Z:1"),
    Case("another rank", f"{UNROLL} --input-shape X:3,1"),
    Case("a size that contradicts", f"{UNROLL} --input-shape X:3,2,3"),
    Case("two sizes of one dimension", f"{UNROLL} --dim T=4 --input-shape X:3,1,3"),
    Case("--node", f"{SCAN} --node gru*"),
    Case("--semantics", f"{SCAN} --semantics onnx"),
    Case("--semantics of verify", "verify model.onnx model.onnx --semantics onnx"),
    Case("--opset", f"{SCAN} --opset 4"),
    Case("--opset of convert", f"{CONVERT} 0"),
    Case("--external-data", f"{SCAN} --external-data maybe"),
    Case("no data to share", f"{SCAN} --external-data share"),
    Case(
        "data to share in another folder",
        "scan model.onnx -o ../out.onnx --external-data share",
        external("weights.data", length=96),
    ),
    Case("standard output twice", "scan model.onnx -o - --json"),
    Case("two files to standard output", "scan model.onnx -o - --external-data always"),
    Case("standard input twice", "verify - -"),
    Case("a folder that is not there", "scan model.onnx -o no/such/out.onnx"),
    Case("a destination that is no file", "scan model.onnx -o /dev/null"),
    Case("another format", "scan model.onnx -o out.json"),
    Case("--seed", f"{SCAN} --seed -1"),
    Case("--atol", f"{SCAN} --atol inf"),
    Case("--state", f"{SCAN} --state Y_h"),
    Case("a state that is not there", f"{SCAN} --state Y_h=h"),
    Case("a state of another shape", f"{SCAN} --state Y=X"),
    Case("two sizes of a dimension", f"{SCAN} --dim T=4 --dim T=6"),
    Case("two states for an input", f"{SCAN} --state Y_h=X --state Y_c=X", cell_state),
    Case("states and inputs", f"{SCAN} --state Y=X --inputs good.npz"),
    Case("trials and inputs", f"{SCAN} --trials 7 --inputs good.npz"),
    Case("a tolerance of no known type", f"{SCAN} --tolerance float8"),
    Case("two tolerances", f"{SCAN} --tolerance float16 --atol 1"),
    Case("how to verify, and not to", f"{SCAN} --no-verify --seed 7"),
    Case("inputs that are no archive", f"{SCAN} --inputs plain.npz"),
    Case("inputs of another rank", f"{SCAN} --inputs rank.npz"),
    Case("inputs of another type", f"{SCAN} --inputs dtype.npz"),
    Case("inputs of another name", f"{SCAN} --inputs name.npz"),
    Case("inputs left out", f"{SCAN} --inputs none.npz"),
    Case("inputs of another size", f"{SCAN} --inputs shape.npz"),
    Case("inputs that do not suit", f"{SCAN} --inputs shape.npz", x(FLOAT, "T", 1, "F")),
    Case("a folder without inputs", f"{SCAN} --inputs nothing"),
    Case("a folder with too many", f"{SCAN} --inputs many"),
    Case("a folder with other files", f"{SCAN} --inputs broken"),
    Case("an .npz file that is not there", f"{SCAN} --inputs inputs.npz"),
]
SETTING = text(17, "int64[2] n, float[2, K] X, bool on, float16 h, string s", "Y = Identity (X)")
LOOPING = text(
    17,
    "float[2] X, int64 n",
    """Y = Loop (n, , X) <body = b (int64 i, bool c, float[2] h) => (bool d, float[2] g) {
        d = Identity (c)
        g = Neg (h)
    }>""",
)
BATCHED = text(
    8,
    "float[1, 3, 2] X, float[1, 2] h",
    """last, Y = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] x) => (float[2] t, float[2] y) {
        t = Add (s, x)
        y = Neg (t)
    }> (, h, X)""",
)
SETS = [
    Case("--set", f"{SCAN} --set X"),
    Case("a value that is none", f"{SCAN} --set X=one"),
    Case("two values", f"{SCAN} --set X=1 --set X=2"),
    Case("an array without a key", f"{SCAN} --set X=@good.npz"),
    Case("an array that is not there", f"{SCAN} --set X=@good.npz:Z"),
    Case("a file that is not there", f"{SCAN} --set X=@values.npz:X"),
    Case("a file that is no archive", f"{SCAN} --set X=@plain.npz:X"),
    Case("an input that is not there", f"{SCAN} --set sr=16000"),
    Case("a number of another kind", f"{SCAN} --set n=1.5", model=SETTING),
    Case("a number for a boolean", f"{SCAN} --set on=2", model=SETTING),
    Case("a number that the type cannot hold", f"{SCAN} --set h=1e6", model=SETTING),
    Case("rows of different lengths", f"{SCAN} --set X=[[1,2],[3]]", model=SETTING),
    Case("text", f"{SCAN} --set s=1", model=SETTING),
    Case("another shape", f"{SCAN} --set n=[1,2,3]", model=SETTING),
    Case("a number where the shape is open", f"{SCAN} --set X=0", model=SETTING),
    Case("a Loop of an open number of iterations", f"{UNROLL} --control-flow unroll", model=LOOPING),
    Case("a Loop that is too long", f"{UNROLL} --control-flow unroll --set n=1000000", model=LOOPING),
    Case("a Scan that has a batch axis", f"{UNROLL} --control-flow unroll --no-lift", model=BATCHED),
    Case("--control-flow", f"{UNROLL} --control-flow open"),
    Case("--namespaces and --strip", f"{UNROLL} --namespaces --strip"),
    Case("an input of the training", f"{SCAN} --set X=0", training(node("Neg", ["X"], ["negative"]))),
    Case("another value among the inputs", f"{SCAN} --dim T=2 --set X=2 --inputs good.npz"),
]
CONVERSION = [
    Case("what replaces the node is newer", f"{SCAN} --opset 7"),
    Case(
        "nothing older says it",
        f"{CONVERT} 13",
        insert(node("Bernoulli", ["X"], ["drawn"], name="draw")),
    ),
    Case("an operator that is none", f"{CONVERT} 13", insert(node("Mystery", ["X"], ["m"], name="odd"))),
    Case("an opset that is not known yet", f"{CONVERT} 13", model=cell(opset=99)),
    Case("functions that cannot be inlined", f"{CONVERT} 13", call(given="X W R B")),
    Case(
        "a function of an opset that is not known yet",
        f"{CONVERT} 18",
        model=text(17, "float[2] X", "Y = own.F (X)", function_of("(x) => (y) { y = Neg (x) }", 99)),
    ),
    Case(
        "a function of no nodes",
        f"{CONVERT} 13",
        model=text(15, "float[2] X", "Y = own.F (X)", function_of("(x) => (x) {}", 15)),
    ),
    Case(
        "a function's attribute that the step changes",
        f"{CONVERT} 16",
        model=text(
            15,
            "float[2, 3] X",
            "Y = own.F <axis = 1> (X)",
            function_of("<axis> (x) => (y) { y = Softmax <axis: int = @axis> (x) }", 12),
        ),
    ),
    Case(
        "axes that a call leaves out",
        f"{CONVERT} 15",
        model=text(
            12,
            "float[2, 1] X",
            "Y = own.F (X)",
            function_of("<axes> (x) => (y) { y = Squeeze <axes: ints = @axes> (x) }", 12),
        ),
    ),
    Case(
        "a constant that a function cannot hold",
        f"{CONVERT} 16",
        model=text(
            15,
            "float[2, 3] X",
            "Y = own.F (X)",
            function_of("(x) => (y) { y = Reshape <shape = [3, 2]> (x) }", 1),
        ),
    ),
    Case("training", f"{CONVERT} 13", training(node("Bernoulli", ["X"], ["drawn"], name="draw"))),
]
VERIFICATION = [
    Case("the lowered model is another", f"{SCAN} --atol 0 --rtol 0"),
    Case("an output that is gone", VERIFY, rename_output),
    Case("a limit of time that is no number", VERIFY, environment=(("RNNLOWER_ENGINE_SECONDS", "soon"),)),
    Case("no engine has the operator", "verify model.onnx model.onnx --trials 1", computed(0)),
    Case("only the candidate has it", VERIFY, computed(0)),
    Case("the candidate does not load", VERIFY, set_attribute("hidden_size", 3)),
    Case("another rank of an input", VERIFY, x(FLOAT, "T", 3)),
    Case("another size of an input", VERIFY, x(FLOAT, "T", 2, 3)),
    Case(
        "an input of unknown rank",
        "verify model.onnx model.onnx",
        no_shapes,
    ),
    Case("an input that is no tensor", SCAN, sequence_input),
    Case("an input of no type", "verify model.onnx model.onnx", x(0, "T", 1, 3)),
    Case("inputs too large to generate", SCAN, x(FLOAT, 10**9, 1, 3)),
    Case("--engine", "verify model.onnx other.onnx --engine tinygrad"),
]
ON = f"{SCAN} --trials 1 --on"
RUNTIMES = [
    Case("no such runtime", f"{ON} tensorflow"),
    Case("a runtime that is not installed", f"{ON} rknn"),
    Case("a runtime, but no verification", f"{SCAN} --no-verify --on rknn"),
    Case("one runtime for both models, another for one", f"{VERIFY} --engine onnxruntime --on onnxruntime"),
    Case("a command without a place for the outputs", f"{ON} 'cmd:./run.sh {{model}} {{inputs}}'"),
    Case("a quote that does not end", f"{ON} 'cmd:./run.sh \"{{model}} {{inputs}} {{outputs}}'"),
    Case("a command that is not there", f"{ON} 'cmd:./nowhere {{model}} {{inputs}} {{outputs}}'"),
    Case("a command that fails", f"{ON} 'cmd:false {{model}} {{inputs}} {{outputs}}'"),
    Case("a command that writes nothing", f"{ON} 'cmd:true {{model}} {{inputs}} {{outputs}}'"),
    Case("a probe without a place for its target", "probe onnxruntime", model=None),
    Case("a target of another name", "probe onnxruntime -o target.json", model=None),
    Case(
        "a probe of what runs nothing",
        "probe -q 'cmd:false {model} {inputs} {outputs}' -o own.toml",
        model=None,
    ),
    Case(
        "a command that writes something else", f"{ON} 'cmd:tee {{outputs}} {{model}}.copy {{inputs}}.copy'"
    ),
]
REPORTS = [
    Case("no .html", f"{SCAN} --report report.pdf"),
    Case("a folder that is not there", f"{SCAN} --report no/such/report.html"),
    Case("in the place of the model", "verify model.html candidate.html --report model.html"),
]
BENCHMARKS = [
    Case("--strategy", "bench model.onnx --strategy fastest"),
    Case("--strategy of a target", "bench model.onnx --strategy lower"),
    Case("--plot", "bench model.onnx --plot chart.pdf"),
    Case("a folder that is not there", "bench model.onnx --plot no/such/chart.png"),
    Case("no matplotlib", "bench model.onnx --plot chart.png", without="matplotlib"),
    Case("no engine has the operator", "bench model.onnx", computed(0)),
    Case("nothing can be made", "bench model.onnx --strategy unroll --runs 1", some_steps),
]
CASES = {
    "The file": FILES,
    "The graph": GRAPHS,
    "Tensors and external data": TENSORS,
    "Recurrent nodes": RECURRENT,
    "Quantized recurrent nodes": QUANTIZED,
    "LinearAttention and CausalConvWithState": STATES,
    "Lengths": LENGTHS,
    "Options": OPTIONS,
    "Inputs that are set, control flow": SETS,
    "Targets": TARGETS,
    "The file of a target": TARGET_FILES,
    "Conversion": CONVERSION,
    "Conversion of operators": [
        Case(
            f"{op_type} of opset {low}",
            f"{CONVERT} {high}",
            model=conversions.model(low, inputs, nodes),
        )
        for op_type, low, high, inputs, nodes in conversions.CONVERSIONS
    ],
    "Verification": VERIFICATION,
    "Other runtimes": RUNTIMES,
    "Reports": REPORTS,
    "Benchmarks": BENCHMARKS,
    "Streams": STREAMS,
    "Quantization": QUANTIZATION,
    "Padding": PADDING,
}

CALLS = [
    Case("no model", "rnnlower.inspect(42)"),
    Case("an opset that is no number", 'rnnlower.unroll(model, opset="17")'),
    Case("no target", "rnnlower.lower(model, target=None)"),
    Case("a strategy that is not in a list", 'rnnlower.bench(model, strategies="scan")'),
    Case("patterns that are no list", "rnnlower.unroll(model, nodes=3)"),
    Case("factors that are no list", "rnnlower.bench(model, unroll_factors=3)"),
    Case("a shape as text", 'rnnlower.unroll(model, input_shapes={"X": "16,1,3"})'),
    Case("a size below 0", 'rnnlower.unroll(model, dims={"T": -1})'),
    Case("a size that is no number", 'rnnlower.unroll(model, dims={"T": "5"})'),
    Case("sizes without names", 'rnnlower.unroll(model, dims=["T"])'),
    Case("a shape that is no list", 'rnnlower.unroll(model, input_shapes={"X": 5})'),
    Case("values without names", 'rnnlower.unroll(model, sets=["X"])'),
    Case("inputs without names", "rnnlower.verify(model, model, inputs=[])"),
    Case("a rate that is no number", 'rnnlower.stream(model, chunk="10ms", rate="fast")'),
    Case("recordings without names", "rnnlower.calibrate(model, [3])"),
    Case("values of a pass without names", 'SetInputsPass(["X"])'),
    Case("a pattern that is not in a list", 'rnnlower.unroll(model, nodes="lstm*")'),
    Case("the unroll factor", "rnnlower.scan(model, unroll_factor=0)"),
    Case("the opset", "rnnlower.convert(model, opset=0)"),
    Case("the number of trials", "rnnlower.verify(model, model, trials=0)"),
    Case("a chunk without steps", "rnnlower.stream(model, chunk=0)"),
    Case("a chunk of too many steps", "rnnlower.stream(model, chunk=2**40)"),
    Case("no maximum", "rnnlower.pad(model, max={})"),
    Case(
        "inputs longer than the maximum",
        "rnnlower.verify(model, rnnlower.pad(model, max={'T': 4}), inputs={'X': np.zeros((9, 1, 3), 'f')})",
    ),
    Case("the number of runs", "rnnlower.bench(model, runs=0)"),
    Case("external data of a protobuf", "rnnlower.verify(model, model)", external("weights.data", length=96)),
    Case("too many inputs", "rnnlower.scan(ir.from_proto(model))", more_inputs("", "", "W"), cell("RNN")),
    Case(
        "too many outputs",
        "rnnlower.scan(ir.from_proto(model))",
        lambda m: m.graph.node[0].output.extend(["Y_c", "more"]),
    ),
    Case(
        "an operator without an input",
        "rnnlower.convert(ir.from_proto(model), opset=10)",
        model=text(11, "float[2] X", "Y = Pad (X)"),
    ),
    Case("a strategy that there is not", 'LowerRecurrentPass("unrol")(ir.from_proto(model))'),
    Case("a length that a pass does not know", 'LowerRecurrentPass("unroll")(ir.from_proto(model))'),
    Case("a node in a function", 'LowerRecurrentPass("scan")(ir.from_proto(model))', call()),
    Case("another opset of a function", "InlineFunctionsPass()(ir.from_proto(model))", call(**{"": 16})),
    Case(
        "an opset too low",
        'LowerRecurrentPass("scan", unroll_factor=2)(ir.from_proto(model))',
        model=cell(opset=9),
    ),
    Case("an opset much too low", 'LowerRecurrentPass("scan")(ir.from_proto(model))', model=cell(opset=7)),
]
