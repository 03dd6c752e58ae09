"""Pairs whose difference a careless verification would miss, and reports of gaps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.small_models import info, model_of, recurrent_model, weights

from rnnlower.errors import OptionError, UnverifiableError
from rnnlower.verification import verify
from rnnlower.verification.verdict.compare import tolerance_for

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({"clip": 1000.0, "activations": ["Relu"]}, {"activations": ["Relu"]}),
        ({"activations": ["Relu"]}, {"clip": 1000.0, "activations": ["Relu"]}),
        ({"clip": 1e5, "activations": ["Relu"]}, {"clip": 2e5, "activations": ["Relu"]}),
        (
            {"activations": ["ThresholdedRelu"], "activation_alpha": [300.0]},
            {"activations": ["ThresholdedRelu"], "activation_alpha": [200.0]},
        ),
        (
            {"activations": ["HardSigmoid"], "activation_alpha": [1e-4]},
            {"activations": ["HardSigmoid"], "activation_alpha": [1e-4], "clip": 3000.0},
        ),
    ],
)
def test_thresholds_beyond_ordinary_magnitudes(right: dict[str, Any], wrong: dict[str, Any]) -> None:
    assert verify(recurrent_model("RNN", **right), recurrent_model("RNN", **right))
    assert not verify(recurrent_model("RNN", **right), recurrent_model("RNN", **wrong))


def _wrong_from(step: int) -> onnx.ModelProto:
    model = recurrent_model("RNN", outputs=("Y",))
    graph = model.graph
    graph.node[0].output[0] = "right"
    graph.node.extend(
        [
            helper.make_node("Slice", ["right", "zero", "step"], ["head"]),
            helper.make_node("Slice", ["right", "step", "end"], ["tail"]),
            helper.make_node("Neg", ["tail"], ["turned"]),
            helper.make_node("Concat", ["head", "turned"], ["Y"], axis=0),
        ]
    )
    for name, value in (("zero", 0), ("step", step), ("end", 2**31)):
        graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    return model


@pytest.mark.parametrize("step", [1, 9, 16, 64])
def test_a_fault_in_late_steps(step: int) -> None:
    assert not verify(recurrent_model("RNN", outputs=("Y",)), _wrong_from(step))


def _choosing(op_type: str, threshold: float) -> onnx.ModelProto:
    """Return one branch or the other by the sum of x."""
    branches = [
        helper.make_graph([helper.make_node(op, ["x"], [f"{op}_y"])], op, [], [info(f"{op}_y", FLOAT, None)])
        for op in (op_type, "Abs")
    ]
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "threshold"], ["flag"]),
        helper.make_node(
            "If", ["flag"], ["y"], name="choice", then_branch=branches[0], else_branch=branches[1]
        ),
    ]
    constants = {"threshold": np.array(threshold, np.float32)}
    return model_of(nodes, [info("x", FLOAT, [3])], [info("y", FLOAT, [3])], constants)


def test_a_branch_that_only_large_values_reach() -> None:
    assert not verify(_choosing("Neg", 1e4), _choosing("Exp", 1e4))
    assert not verify(_choosing("Neg", 1e4), _choosing("Neg", 1e4)).skipped


def test_a_branch_that_never_ran_is_told() -> None:
    result = verify(_choosing("Neg", 1e30), _choosing("Exp", 1e30))
    assert result.skipped == ("If node 'choice': its then_branch never ran, and was not compared",)
    x = {"x": np.ones(3, np.float32)}
    result = verify(_choosing("Neg", 0.0), _choosing("Neg", 0.0), inputs=x)
    assert result.skipped == ("If node 'choice': its else_branch never ran, and was not compared",)


def test_a_branch_in_a_branch_that_never_ran_is_told() -> None:
    """Only the innermost: that what it holds did not run either goes without saying."""

    def graph(name: str, op_type: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        own = nodes or (helper.make_node(op_type, ["x"], [f"{name}_y"]),)
        return helper.make_graph(own, name, [], [info(own[-1].output[0], FLOAT, None)])

    def choice(name: str, flag: str, then: onnx.GraphProto) -> onnx.NodeProto:
        other = graph(f"{name}_else", "Abs")
        return helper.make_node("If", [flag], [f"{name}_z"], name=name, then_branch=then, else_branch=other)

    innermost = graph("deep", "", choice("third", "never", graph("third", "Neg")))
    middle = graph("mid", "", choice("second", "never", innermost))
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["flag"]),
        helper.make_node("Greater", ["sum", "huge"], ["never"]),
        choice("first", "flag", middle),
    ]
    constants = {"zero": np.array(0, np.float32), "huge": np.array(1e30, np.float32)}
    model = model_of(nodes, [info("x", FLOAT, [3])], [info("first_z", FLOAT, [3])], constants)
    result = verify(model, model)
    assert result.skipped == ("If node 'second': its then_branch never ran, and was not compared",)


def _unary(*ops: str) -> onnx.ModelProto:
    names = ["x", *(f"v{number}" for number in range(1, len(ops))), "y"]
    nodes = [helper.make_node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(ops)]
    return model_of(nodes, [info("x", FLOAT, [3])], [info("y", FLOAT, [3])])


def test_an_output_that_is_never_a_number_is_told() -> None:
    # log(-|x| - ...) is NaN for every x.
    result = verify(_unary("Abs", "Neg", "Log"), _unary("Abs", "Neg", "Log"))
    assert result
    assert any("'y' is NaN or infinite in every trial" in text for text in result.skipped)
    assert not verify(_unary("Neg"), _unary("Neg")).skipped


def test_an_output_that_is_always_empty_is_told() -> None:
    nodes = [helper.make_node("Slice", ["x", "zero", "zero"], ["y"])]
    zero = {"zero": np.array([0])}
    model = model_of(nodes, [info("x", FLOAT, [3])], [info("y", FLOAT, [0])], zero)
    assert any("'y' is empty in every trial" in text for text in verify(model, model).skipped)


def test_an_operator_that_only_the_candidate_has_is_no_verdict() -> None:
    strange = _unary("Neg")
    strange.graph.node[0].domain = "own"
    strange.opset_import.add(domain="own", version=1)
    with pytest.raises(UnverifiableError, match=r"no engine runs the candidate: .*own::Neg"):
        verify(_unary("Neg"), strange)
    assert not verify(_unary("Neg"), _unary("Nonesuch"))


def test_inputs_in_another_order() -> None:
    inputs = [info("a", FLOAT, [3]), info("b", FLOAT, [3])]
    nodes = [helper.make_node("Sub", ["a", "b"], ["y"])]
    models = [model_of(nodes, order, [info("y", FLOAT, [3])]) for order in (inputs, inputs[::-1])]
    result = verify(*models)
    assert not result
    assert result.problems == ("the inputs are ordered ['b', 'a'] instead of ['a', 'b']",)


@pytest.mark.parametrize(
    ("op_type", "shape", "rows"), [("Gather", ["n"], (3, 2)), ("GatherND", ["n", 2], (10, 2))]
)
def test_indices_that_are_computed(op_type: str, shape: list[Any], rows: tuple[int, ...]) -> None:
    nodes = [
        helper.make_node("Add", ["ids", "offset"], ["indices"]),
        helper.make_node(op_type, ["table", "indices" if op_type == "Gather" else "ids"], ["y"]),
    ]
    constants = {"offset": np.array(0), "table": np.zeros(rows, np.float32)}
    model = model_of(nodes, [info("ids", INT64, shape)], [info("y", FLOAT, None)], constants)
    result = verify(model, model)
    assert (result.trials, result.skipped) == (24, ())


@pytest.mark.parametrize(
    "options", [{"atol": math.nan}, {"rtol": math.nan}, {"atol": math.inf}, {"rtol": -1.0}, {"seed": -1}]
)
def test_tolerances_that_would_let_everything_pass(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        verify(_unary("Neg"), _unary("Abs"), **options)


def test_tolerances_grow_with_the_square_root_of_the_steps() -> None:
    one, short, long = (tolerance_for(np.dtype(np.float32), steps=steps) for steps in (1, 64, 6400))
    assert one == short
    assert (long.atol, long.rtol) == (pytest.approx(10 * one.atol), pytest.approx(10 * one.rtol))
    # A tolerance that is given is taken as it is.
    assert tolerance_for(np.dtype(np.float32), atol=1e-3, steps=6400).atol == 1e-3


def test_steps_come_from_the_inputs() -> None:
    def off_by(factor: float) -> onnx.ModelProto:
        model = recurrent_model("RNN", outputs=("Y",))
        model.graph.node[0].output[0] = "right"
        model.graph.node.append(helper.make_node("Mul", ["right", "factor"], ["Y"]))
        model.graph.initializer.append(numpy_helper.from_array(np.float32(factor), "factor"))
        return model

    for steps, equal in ((4, False), (6400, True)):
        X = np.ones((steps, 1, 3), np.float32)
        assert bool(verify(off_by(1.0), off_by(1.0005), inputs={"X": X})) == equal


@pytest.mark.parametrize("steps", [4, "T"])
def test_the_time_step_of_what_follows_a_recurrent_node(steps: int | str) -> None:
    def squeezed(factor: float) -> onnx.ModelProto:
        constants = weights("RNN")
        nodes = [
            helper.make_node("RNN", ["X", "W", "R"], ["all"], hidden_size=4),
            helper.make_node("Squeeze", ["all", "one"], ["flat"]),
            helper.make_node("Mul", ["flat", "factor"], ["scaled"]),
            helper.make_node("Transpose", ["scaled"], ["Y"], perm=[1, 0, 2]),
        ]
        constants |= {"one": np.array([1]), "factor": np.array(factor, np.float32)}
        return model_of(nodes, [info("X", FLOAT, [steps, 2, 3])], [info("Y", FLOAT, None)], constants)

    result = verify(squeezed(1.0), squeezed(1.1))
    assert not result
    worst = result.outputs[0]
    assert worst.worst_index is not None
    assert worst.worst_step == worst.worst_index[1]


def test_a_difference_is_traced_in_models_with_external_data(tmp_path: Path) -> None:
    paths = []
    for name, ops in (("right", ("Neg", "Exp", "Abs")), ("wrong", ("Neg", "Sigmoid", "Abs"))):
        model = _unary(*ops)
        model.graph.node.append(helper.make_node("Add", ["y", "bias"], ["z"]))
        model.graph.output[0].name = "z"
        model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "bias"))
        paths.append(tmp_path / f"{name}.onnx")
        onnx.save(model, paths[-1], save_as_external_data=True, location=f"{name}.data", size_threshold=0)
    begin = verify(*paths).first_difference
    assert begin is not None
    # v2 is another operator's, hence not the same value.
    assert begin.startswith("y:")


@pytest.mark.parametrize("rank", [3, "r"])
def test_a_shape_that_comes_as_an_input(rank: int | str) -> None:
    def reshaped(factor: float) -> onnx.ModelProto:
        constants = weights("RNN") | {"factor": np.array(factor, np.float32)}
        nodes = [
            helper.make_node("Reshape", ["flat", "sizes"], ["X"]),
            helper.make_node("RNN", ["X", "W", "R"], ["all"], hidden_size=4),
            helper.make_node("Mul", ["all", "factor"], ["Y"]),
        ]
        inputs = [info("flat", FLOAT, ["n"]), info("sizes", INT64, [rank])]
        return model_of(nodes, inputs, [info("Y", FLOAT, None)], constants)

    result = verify(reshaped(1.0), reshaped(1.0))
    assert (result.trials, result.skipped) == (24, ())
    assert not verify(reshaped(1.0), reshaped(1.1))


def test_lengths_reach_into_an_input_that_a_reshape_shapes() -> None:
    """With lengths of 0 and 1 alone, reverse would be forward."""
    models = []
    for direction in ("forward", "reverse"):
        model = recurrent_model(
            "RNN", inputs={"shaped": (FLOAT, [None]), "sequence_lens": (TensorProto.INT32, [None])}
        )
        model.graph.input[0].name = "flat"
        model.graph.input.append(info("shape", INT64, [3]))
        model.graph.node[0].input[0] = "shaped"
        model.graph.node[0].attribute.append(helper.make_attribute("direction", direction))
        model.graph.node.insert(0, helper.make_node("Reshape", ["flat", "shape"], ["shaped"]))
        models.append(model)
    assert verify(models[0], models[0])
    assert not verify(*models)


def test_branches_that_only_run_at_the_size_of_a_constant_run() -> None:
    """onnxruntime holds a branch to the shape of the constant in the other one."""
    models = []
    for scale in (1.0, 2.0):
        zeros = numpy_helper.from_array(np.zeros((7, 1, 6, 4), np.float32))
        inner = recurrent_model("RNN", outputs=["Y"]).graph.node[0]
        scaled = helper.make_node("Mul", ["Y", "scale"], ["z"])
        branches = [
            helper.make_graph(nodes, "branch", [], [info("z", FLOAT, [None, 1, None, 4])])
            for nodes in ([inner, scaled], [helper.make_node("Constant", [], ["z"], value=zeros)])
        ]
        node = helper.make_node("If", ["flag"], ["z"], then_branch=branches[0], else_branch=branches[1])
        nested = helper.make_graph([node], "nested", [], [info("z", FLOAT, [None, 1, None, 4])])
        outer = helper.make_node("If", ["outer"], ["z"], then_branch=nested, else_branch=branches[1])
        constants = weights("RNN") | {"scale": np.array(scale, np.float32)}
        flags = [info(name, TensorProto.BOOL, []) for name in ("outer", "flag")]
        inputs = [*flags, info("X", FLOAT, [None] * 3)]
        outputs = [info("z", FLOAT, [None, 1, None, 4])]
        models.append(model_of([outer], inputs, outputs, constants, opset=8))
    assert verify(models[0], models[0]).skipped == ()
    assert not verify(*models)


def _elementwise(text: str, elem_type: str = "float") -> onnx.ModelProto:
    """Return Y of X, ``[N, 3]``."""
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 18]>
        main ({elem_type}[N,3] X) => ({elem_type}[N,3] Y)
        <float zero = {{0}}, float seven = {{7}}, int64 ten = {{10}}> {{ {text} }}
    """)


_MASKED = "g = Greater (X, zero)  z = Neg (zero)  i = Reciprocal (zero)  m = Neg (i)  Y = Where (g, X, {})"
_ROOT = "r = Sqrt (X)  q = IsNaN (r)  Y = Where (q, {}, r)"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("Y = Sqrt (X)", _ROOT.format("seven")),
        ("Y = Sqrt (X)", _ROOT.format("zero")),
        ("Y = Sqrt (X)", "a = Abs (X)  Y = Sqrt (a)"),
        ("Y = Log (X)", "a = Relu (X)  Y = Log (a)"),
        (_MASKED.format("m"), _MASKED.format("seven")),
        (_MASKED.format("m"), _MASKED.format("i")),
    ],
)
def test_intended_nan_and_infinity(right: str, wrong: str) -> None:
    """Nothing overflows: a number in their place is a difference, whichever way round."""
    models = [_elementwise(text) for text in (right, wrong)]
    assert all(verify(model, model) for model in models)
    assert not verify(*models)
    assert not verify(*models[::-1])


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("Y = Identity (X)", "Y = Abs (X)"),
        ("Y = Identity (X)", "Y = Min (X, ten)"),
        ("Y = Mod (X, ten)", "Y = Mod <fmod = 1> (X, ten)"),
        ("Y = Div (X, ten)", "a = Abs (X)  Y = Div (a, ten)"),
        ("Y = Identity (X)", "h = Constant <value = int64 {5000}> ()  Y = Min (X, h)"),
        # A comparison does not limit what else the model does with them.
        ("l = Less (X, ten)  Y = Where (l, X, ten)", "a = Abs (X)  l = Less (X, ten)  Y = Where (l, a, ten)"),
    ],
)
def test_integers_of_either_sign(right: str, wrong: str) -> None:
    assert not verify(_elementwise(right, "int64"), _elementwise(wrong, "int64"))


def test_rows_of_a_table_that_the_model_compares_with() -> None:
    """One of 50,000 rows is masked."""
    models = [
        onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["" : 18]>
            main (int64[N, T] ids) => (float[N, T] Y, bool[N, T] masked) <int64 one = {{{number}}}> {{
                rows = Constant <value = int64[1] {{50000}}> ()  table = ConstantOfShape (rows)
                Y = Gather (table, ids)  masked = Equal (ids, one)
            }}
        """)
        for number in (102, 103)
    ]
    assert not verify(*models)


@pytest.mark.parametrize("steps", ["T", 4])
def test_a_step_that_is_counted_from_the_end(steps: int | str) -> None:
    right, wrong = (
        onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["" : 18]>
            main (float[{steps}, 3] X, int64[K] places) => (float[K, 3] Y) <int64 zero = {{0}}> {{
                steps = Tanh (X)  forward = Max (places, zero)  Y = Gather (steps, {places})
            }}
        """)
        for places in ("places", "forward")
    )
    assert verify(right, right)
    assert not verify(right, wrong)


def test_integers_that_become_sizes_stay_small() -> None:
    """A negative number of repeats would end onnxruntime's process."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        main (int64[2] N) => (float[a,b] Y) <float[1,1] one = {1}>
        { twice = Add (N, N)  Y = Tile (one, twice) }
    """)
    assert verify(model, model)


def test_an_output_that_no_comparison_sees_is_told() -> None:
    model = _elementwise("e = Constant <value = float {1e-9}> ()  Y = Mul (X, e)")
    result = verify(model, _elementwise("e = Constant <value = float {2e-9}> ()  Y = Mul (X, e)"))
    assert result
    assert "output 'Y' stays below 1e-06 in every trial" in result.skipped[0]
    assert not verify(
        model, _elementwise("e = Constant <value = float {2e-9}> ()  Y = Mul (X, e)"), rtol=1e-4
    )


def test_an_optional_value_that_differs() -> None:
    text = '<ir_version: 8, opset_import: ["" : 18]> main (float[T] x) => (optional(float[T]) y) {{ {} }}'
    source = onnx.parser.parse_model(text.format("y = Optional (x)"))
    assert verify(source, source)
    assert not verify(source, onnx.parser.parse_model(text.format("z = Neg (x) y = Optional (z)")))


@pytest.mark.parametrize(
    ("kind", "wrapped"),
    [
        ("optional(float[T])", "y = Optional (x)"),
        ("seq(float[T])", "y = SequenceConstruct (x)"),
        ("seq(int64[T])", "y = SequenceEmpty <dtype = 7> ()"),
        ("optional(seq(float[T]))", "s = SequenceConstruct (x) y = Optional (s)"),
    ],
)
@pytest.mark.parametrize(
    "other", [("float[T]", "y = Identity (x)"), ("seq(float[T])", "y = SequenceEmpty ()")]
)
def test_a_container_that_another_type_replaces(kind: str, wrapped: str, other: tuple[str, str]) -> None:
    text = '<ir_version: 8, opset_import: ["" : 18]> main (float[T] x) => ({} y) {{ {} }}'
    models = [onnx.parser.parse_model(text.format(*each)) for each in ((kind, wrapped), other)]
    assert verify(models[0], models[0])
    assert not verify(*models)
    assert not verify(*models[::-1])


def test_an_output_that_is_no_longer_there_twice() -> None:
    text = '<ir_version: 8, opset_import: ["" : 18]> main (float[T] x) => ({}) {{ y = Neg (x) }}'
    source = onnx.parser.parse_model(text.format("float[T] y, float[T] y"))
    assert verify(source, source)
    result = verify(source, onnx.parser.parse_model(text.format("float[T] y")))
    assert "the outputs are ordered ['y'] instead of ['y', 'y']" in str(result)


def _of_function(call: str, function: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18, "own" : 1]> main (float[T, 4] x) => (float[T, 4] y) '
        f'{{ {call} }} <domain: "own", opset_import: ["" : 18]> {function}'
    )


def test_a_constant_of_a_function_by_reference() -> None:
    function = (
        "F <by: float = 2.0, axes: ints = [0]> (x) => (y) { k = Constant <value_float: float = @by> () "
        "a = Constant <value_ints: ints = @axes> () m = ReduceMean (x, a) s = Sub (x, m) y = Mul (s, k) }"
    )
    models = [_of_function(call, function) for call in ("y = own.F (x)", "y = own.F <by = 2.5> (x)")]
    assert verify(models[0], models[0])
    assert verify(models[0], models[0], tolerance="float16")
    assert not verify(*models)


@pytest.mark.parametrize(
    "limited",
    [
        "l = Constant <value_float = 3000.0> () y = Clip (r, , l)",
        "l = Constant <value_floats = [3000.0]> () y = Min (r, l)",
        "c = Constant <value = double[1] {3000}> () l = Cast <to = 1> (c) y = Min (r, l)",
        "y = own.F <most = 3000.0> (r)",
    ],
)
def test_a_limit_in_any_form(limited: str) -> None:
    function = (
        "F <most: float = 1.0> (x) => (y) { l = Constant <value_float: float = @most> () y = Min (x, l) }"
    )
    models = [_of_function(f"r = Relu (x) {nodes}", function) for nodes in ("y = Identity (r)", limited)]
    assert not verify(*models)
    assert not verify(*reversed(models))
