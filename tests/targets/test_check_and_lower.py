"""Agreement of `check` and `lower`: the listed nodes are those that are lowered."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from support.configs import Config, configs
from support.folded_rows import FOLDED_ROWS
from support.small_models import recurrent_model
from support.target_files import MINIMAL, write

import rnnlower
from rnnlower.passes.checking import forecast
from rnnlower.passes.command_options import CheckOptions
from rnnlower.passes.options import LoweringOptions
from rnnlower.passes.pipeline import lower_model
from rnnlower.targets import find_target, target_names
from rnnlower.targets.fit import Misfit, find_misfits

RECURRENT = ("LSTM", "GRU", "RNN")
BUDGET = settings(
    max_examples=int(os.environ.get("RNNLOWER_EXAMPLES", "8")),
    deadline=None,
    derandomize="RNNLOWER_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_an_opset_that_the_target_does_not_take_is_no_advice(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        main (string[2] x) => (bool[2] y) { y = RegexFullMatch <pattern = "a"> (x) }
    """)
    own = write(tmp_path, MINIMAL | {"opset": "range = [9, 18]"})
    with pytest.raises(rnnlower.OpsetError) as caught:
        rnnlower.lower(model, target=str(own))
    assert "choose a target that takes more" in str(caught.value)
    assert "ask for opset" not in str(caught.value)


def without_types(model: onnx.ModelProto) -> onnx.ModelProto:
    del model.graph.value_info[:]
    return model


Nodes = set[tuple[str, str]]


def listed(model: onnx.ModelProto, target: str) -> Nodes:
    return {
        (each.path, each.name) for each in rnnlower.check(model, target=target) if each.op_type in RECURRENT
    }


def lowered_and_kept(
    model: onnx.ModelProto, target: str
) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    # A lowering may rename tensors, which would be the proto's own.
    own = ir.from_proto(onnx.ModelProto.FromString(model.SerializeToString()))
    report = lower_model(own, LoweringOptions("target", target=find_target(target)))
    lowered, kept = ({(each.path, each.name) for each in nodes} for nodes in (report.nodes, report.kept))
    return lowered, kept


@BUDGET
@given(config=configs(), target=st.sampled_from(target_names()))
def test_check_lists_what_lower_does_not_keep(config: Config, target: str) -> None:
    model = without_types(config.build())
    try:
        lowered, kept = lowered_and_kept(model, target)
    except rnnlower.RnnLowerError:
        return
    assert listed(model, target) == lowered, config
    assert not kept & lowered


def test_a_type_that_follows_from_the_inputs_is_known() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[2, 3, 4] x) => (float[3, 1, 2, 2] Y)
        <float[1, 2, 4] W = {1, 1, 1, 1, 1, 1, 1, 1}, float[1, 2, 2] R = {1, 1, 1, 1}>
        {
            X = Transpose <perm = [1, 0, 2]> (x)
            W2 = Identity (W)
            R2 = Identity (R)
            Y, Y_h = RNN <hidden_size = 2> (X, W2, R2)
        }
    """)
    assert listed(model, "onnxruntime") == set()
    assert lowered_and_kept(model, "onnxruntime") == (set(), {("", "RNN_0")})


@pytest.mark.parametrize(("how", "fits"), [("initializer", True), ("initializer_input", False)])
def test_an_initializer_that_may_be_overridden_is_no_constant(tmp_path, how: str, fits: bool) -> None:
    target = write(
        tmp_path,
        MINIMAL | {"ops": "absent = []"},
        '[[recurrent]]\nops = ["LSTM"]\nconstant = ["W"]\nsource = "me"\n',
    )
    model = Config(W=how).build()
    assert (listed(model, str(target)) == set()) == fits
    assert lowered_and_kept(model, str(target)) == (
        (set(), {("", "LSTM_0")}) if fits else ({("", "LSTM_0")}, set())
    )


def test_a_node_of_a_function_is_judged_where_it_is_called() -> None:
    model = Config(place="function", opset=17).build()
    lowered, kept = lowered_and_kept(model, "onnxruntime")
    assert (listed(model, "onnxruntime"), len(kept)) == (lowered, 1)


def test_nodes_emitted_by_one_lowering_are_lowered_by_the_next() -> None:
    model = ir.from_proto(Config(op_type="RNN", activations=("Softplus",), Y_h="graph").build())
    first = rnnlower.lower(model, target="tinygrad")
    second = rnnlower.lower(first, target="primitive")
    assert "Split" in {node.op_type for node in first.graph}
    assert "Split" not in {node.op_type for node in second.graph}
    for each in (first, second):
        assert not [key for node in each.graph for key in node.meta if key.startswith("rnnlower.")]


def test_a_lowering_that_is_refused_leaves_no_marks() -> None:
    model = ir.from_proto(Config(activations=("Elu", "Tanh", "Tanh")).build())
    with pytest.raises(rnnlower.UnsupportedModelError):
        lower_model(model, LoweringOptions("target", target=find_target("primitive")))
    assert not [key for node in model.graph for key in node.meta if key.startswith("rnnlower.")]


COUNTED = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[2] x, int64 n) => (float[2] y, float[2] z, float[2, 2] t) <int64 three = {{3}}, bool go = {{1}}> {{
        y = Loop <body = b1 (int64 i, bool c, float[2] s) => (bool k, float[2] r) {{ k = Identity (c)  r = Neg (s) }}> ({0}, go, x)
        z = Loop <body = b2 (int64 j, bool d, float[2] u) => (bool l, float[2] v) {{ l = Identity (d)  v = Abs (u) }}> ({1}, go, x)
        r1 = Round (x)
        r2 = Round (r1)
        r3 = Round (r2)
        r4 = Round (r3)
        e = Unsqueeze (r4, zero)
        t = Concat <axis = 0> (e, e)
    }}
"""  # noqa: E501


def counted(first: str, second: str) -> onnx.ModelProto:
    initializer = "int64[1] zero = {0}, bool go"
    return onnx.parser.parse_model(COUNTED.format(first, second).replace("bool go", initializer))


@pytest.mark.parametrize("counts", [("three", "three"), ("three", "n"), ("n", "n")])
@pytest.mark.parametrize("target", ["tract", "primitive", "onnxruntime"])
def test_check_forecasts_the_misfits_that_lower_leaves(counts: tuple[str, str], target: str) -> None:
    options = LoweringOptions("target", target=find_target(target))
    told = forecast(ir.from_proto(counted(*counts)), CheckOptions(target=target)).misfits
    own = ir.from_proto(counted(*counts))
    lower_model(own, options)
    assert told == find_misfits(own, find_target(target))


def test_notes_group_the_misfits_by_the_option_that_resolves_them() -> None:
    options = LoweringOptions("target", target=find_target("primitive"))
    notes = lower_model(ir.from_proto(counted("three", "n")), options).notes
    loops, rounds = (
        next(note for note in notes if op_type in note.split(":")[0]) for op_type in ("Loop", "Round")
    )
    assert "primitive has no Loop; input 'n' decides it: sets={\"n\": VALUE}" in loops
    assert "4 Round nodes" in rounds
    assert "and 1 more" in rounds
    assert rounds.endswith("replace it in the model")
    settled = LoweringOptions("target", target=find_target("primitive"), sets={"n": 2})
    notes = lower_model(ir.from_proto(counted("three", "n")), settled).notes
    assert not any("has no Loop" in note for note in notes)


def lacking(target: str) -> list[Misfit]:
    nodes = "cell (float[2, 3] x) => (float[2, 3] y) { y = Round (x) }"
    model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {nodes}'))
    return find_misfits(model, find_target(target))


def test_a_remedy_names_two_targets_and_the_alternatives_list_all() -> None:
    (misfit,) = lacking("axera")
    first, second, *others = misfit.alternatives
    assert {first, second} <= {"onnxruntime", "openvino", "tract", "opencv"}
    words = (
        f"replace it in the model, or choose a target that has it ({first}, {second} and {len(others)} more)"
    )
    assert misfit.remedy == words
    have = {name for name in target_names() if "Round" in find_target(name).op_types}
    assert {*misfit.alternatives} == have - {"ort-quantization", "primitive", "sonnx"}


def test_the_remedy_for_a_model_local_function_is_to_lower() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
        main (float[2, 3] x) => (float[2, 3] y) { y = own.twice (x) }
        <domain: "own", opset_import: ["": 17]> twice (x) => (y) { y = Add (x, x) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    (misfit,) = find_misfits(model, find_target("mnn"))
    assert misfit.remedy == 'rnnlower.lower(model, target="mnn")'
    lower_model(model, LoweringOptions("target", target=find_target("mnn")))
    assert not find_misfits(model, find_target("mnn"))


def test_targets_that_are_no_runtime_give_and_get_no_advice_to_change() -> None:
    for name in ("ort-quantization", "primitive", "sonnx"):
        assert not find_target(name).runtime
    (misfit,) = lacking("primitive")
    assert (misfit.remedy, misfit.alternatives) == ("replace it in the model", ())


@pytest.mark.parametrize("place", ["function", "branch"])
def test_a_node_that_ends_up_in_the_main_graph_is_judged_there(place: str) -> None:
    """The target runs it there, and not in a body."""
    model = recurrent_model("GRU", inputs={"X": (onnx.TensorProto.FLOAT, [5, 2, 3])})
    (node,), graph = model.graph.node, model.graph
    names = [each for each in node.input if each]
    call = helper.make_node("Inner", names, node.output, domain="local")
    if place == "function":
        model.functions.append(
            helper.make_function("local", "Inner", names, node.output, [node], model.opset_import)
        )
        model.opset_import.append(helper.make_opsetid("local", 1))
    else:
        graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
        branch = helper.make_graph([node], "branch", [], graph.output)
        call = helper.make_node("If", ["yes"], ["a", "b"], then_branch=branch, else_branch=branch)
        for output, name in zip(graph.output, call.output, strict=True):
            output.name = name
    del graph.node[:]
    graph.node.append(call)
    assert [each.op_type for each in rnnlower.lower(model, target="tract").graph.node] == ["GRU"]
    misfits = [str(each) for each in rnnlower.check(model, target="tract")]
    assert any("a place in a body" in each for each in misfits) is (place == "branch")


def test_folded_rows_and_narrow_sizes_are_checked_and_converted_as_they_are() -> None:
    """Only a lowering writes them in another way; with inputs that are given, the rest is simplified."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[N, T, 4] x, int64[1] zero) => (float[N, T, 2] y)
        <int64[2] rows = {-1, 4}, int64[1] two = {2}, int32[1] last = {2},
         float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] b = {1, 2}> {
            FOLDED_ROWS
            g = Gemm (f, w, b)
            y = Reshape (g, shape)
        }""".replace("FOLDED_ROWS", FOLDED_ROWS)
    )
    sets, target = {"zero": [0]}, "ort-quantization"
    misfits = rnnlower.check(model, target=target, sets=sets)
    assert [each.op_type for each in misfits] == ["Gemm"]
    assert rnnlower.check(rnnlower.lower(model, target=target, sets=sets), target=target) == []
    converted = [node.op_type for node in rnnlower.convert(model, opset=18, sets=sets).graph.node]
    assert converted == [node.op_type for node in model.graph.node]
