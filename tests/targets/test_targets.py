"""Target files, built-in and of a user, and misfits."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from support.configs import Config
from support.target_files import MINIMAL, write

import rnnlower
from rnnlower.targets import Target, find_target, target_names
from rnnlower.targets.fit import find_misfits

WANTED = {
    *("onnx2c", "onnx2torch", "onnxruntime", "opencv", "openvino", "ort-coreml", "ort-nnapi", "ort-qnn"),
    *("axera", "esp-dl", "ort-webgpu", "ort-webnn", "primitive", "tensorrt", "tidl", "tinygrad", "tract"),
    *("emx", "iree", "litert", "mnn", "ncnn", "ort-web", "rknn", "tvm-relax"),
}


def test_every_expected_target_exists():
    assert set(target_names()) >= WANTED


@pytest.mark.parametrize("name", target_names())
def test_target_is_complete(name: str) -> None:
    target = find_target(name)
    assert target.name == name
    assert target.title != name
    standard = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    named = {*(target.ops.allowed or ()), *(target.ops.absent or ())}
    named = {op_type for op_type in named if "." not in op_type}
    named |= {op_type for limit in target.limits for op_type in limit.ops}
    assert named <= standard
    assert all(claim.source.strip() for _, claim in target.claims())
    first, last = target.opset.range
    assert 7 <= first < last <= 26
    assert "float32" in target.dtypes.allowed
    if name not in ("primitive", "sonnx", "ort-quantization"):  # These are no runtimes.
        assert target.costs is not None
        assert target.costs.guess or "fit_cost.py" in target.costs.source
    wanted = {"MatMul", "Add", "Mul", "Sigmoid", "Tanh", "Concat", "Reshape", "Slice"}
    if name == "opencv":
        wanted -= {"Tanh"}  # NaN for large inputs, and written with Sigmoid for it.
    assert wanted <= target.op_types
    assert not {"LSTM", "GRU", "RNN"} & target.op_types
    for limit in target.limits:
        assert set(limit.ops) <= target.op_types


@pytest.mark.parametrize("name", sorted(WANTED - {"primitive"}))
def test_sources_name_a_version_or_a_page(name: str) -> None:
    for table, claim in find_target(name).claims():
        assert (
            claim.guess
            or any(character.isdigit() for character in claim.source)
            or any(
                word in claim.source
                for word in ("documentation", "docs/", "README", ".rs", "Interface", "API")
            )
        ), f"{table}: {claim.source}"


def test_a_target_file_of_the_user_is_read(tmp_path: Path) -> None:
    target = find_target(write(tmp_path, MINIMAL))
    assert isinstance(target, Target)
    assert target.name == "own"
    assert target.op_types == {"Add", "MatMul"}


def limit(op_type: str, *keys: str) -> str:
    return "\n".join(["[[limits]]", f'ops = ["{op_type}"]', *keys, 'source = "me"', ""])


def rule(*keys: str) -> str:
    return "\n".join(["[[recurrent]]", 'ops = ["LSTM"]', *keys, 'source = "me"', ""])


@pytest.mark.parametrize(
    ("tables", "more", "message"),
    [
        ({"opset": "range = [9, 7]"}, "", "opset.range is"),
        ({"opset": 'range = ["7", 9]'}, "", "opset.range is '7'; it must be an integer"),
        ({"opset": "range = [7]"}, "", "opset.range is [7]; it must have 2 entries"),
        ({}, '[costs]\nmicroseconds = { node = 1 }\nsource = "me"\n', "did you mean 'nodes'?"),
        (
            {},
            '[costs]\nmicroseconds = {}\nnative = { LSTM = { nodes = true } }\nsource = "me"\n',
            "costs.native.LSTM.nodes is True; it must be a number",
        ),
        (
            {},
            '[costs]\nmicroseconds = {}\nnative = { LSTM = 1 }\nsource = "me"\n',
            "LSTM is 1; it must be a table",
        ),
        (
            {},
            '[costs]\nmicroseconds = { nodes = nan }\nsource = "me"\n',
            "costs.microseconds.nodes is nan; it must be a finite number of at least 0",
        ),
        (
            {},
            limit("Resize", 'written = ["mod"]'),
            "limits[0].written names 'mod', which is unknown; did you mean",
        ),
        ({}, limit("Resize", "constant = [1.5]"), "limits[0].constant is 1.5; it must be an integer"),
        ({"opset": "range = 7"}, "", "opset.range is 7; it must be a list"),
        ({"shapes": "static = 1"}, "", "shapes.static is 1; it must be true or false"),
        ({"shapes": "statics = true"}, "", "unknown key 'statics'"),
        ({"control_flow": 'ops = ["While"]'}, "", "names 'While'"),
        ({"ops": 'allowed = ["Add"]\nabsent = []'}, "", "either allowed or absent"),
        ({"ops": "domains = []"}, "", "either allowed or absent"),
        ({}, "[extra]\n", "unknown key 'extra'"),
        (
            {},
            "[name]\n",
            "unknown key 'name' at the top, for a target is named by its file; known are title,",
        ),
        ({}, "[extra]\n", "`rnnlower targets --new FILE.toml` writes a start"),
        ({}, '[[limits]]\nops = ["Add"]\n', 'limits[0] has no source; it must have source = "'),
        ({}, '[[limits]]\nops = ["Add"]\nguess = false\n', "or guess = true"),
        ({}, '[[limits]]\nops = ["Add"]\nsource = " "\n', "has no source"),
        ({}, '[[recurrent]]\nops = ["LSTM"]\notherwise = "maybe"\nsource = "me"\n', "names 'maybe'"),
        ({}, '[[recurrent]]\nops = ["Conv"]\nsource = "me"\n', "names 'Conv'"),
        ({}, "[opset", "own.toml"),
        (
            {"ops": 'allowed = ["Matmul"]'},
            "",
            "names 'Matmul', which is unknown; did you mean 'MatMul'?",
        ),
        ({"dtypes": 'allowed = ["float"]'}, "", "did you mean 'float64'?"),
        (
            {},
            limit("Resize", 'attributes = { mode = "linear" }'),
            ".mode is 'linear'; it must be a list",
        ),
        (
            {},
            limit("Resize", "attributes = { mode = [1] }"),
            "has 1; the attribute is of type STRING",
        ),
        (
            {},
            limit("Resize", 'attributes = { mod = ["linear"] }'),
            "limits[0].attributes names 'mod', which is unknown; did you mean 'mode'?",
        ),
        ({}, limit("Rezise"), "limits[0].ops names 'Rezise', which is unknown; did you mean 'Resize'?"),
        ({}, limit("Split", "max_outputs = 1"), "limits[0].max_outputs is 1; it must be at least 2"),
        ({}, limit("Split", "constant = [-1]"), "limits[0].constant is -1; it must be at least 0"),
        (
            {},
            rule('directions = ["forwards"]'),
            "directions names 'forwards', which is unknown; did you mean 'forward'?",
        ),
        ({}, rule('inputs = ["initial_H"]'), "did you mean 'initial_h'?"),
        ({}, rule('activations = ["tanh"]'), "did you mean 'Tanh'?"),
        ({}, rule('wrong = ["revers"]'), "did you mean 'reverse'?"),
        ({}, rule('needs = ["B", "seq_lens"]'), "did you mean 'sequence_lens'?"),
        ({}, rule('dtypes = ["flaot32"]'), "did you mean 'float32'?"),
        ({}, rule('semantics = ["onnx"]'), "names 'onnx'"),
        ({}, rule("attributes = { layout = 0 }"), "recurrent[0].attributes.layout is 0; it must be a list"),
        ({}, rule("attributes = { linear_before_rest = [0] }"), "did you mean 'linear_before_reset'?"),
        ({}, rule('direction = ["forward"]'), "unknown key 'direction'; did you mean 'directions'?"),
    ],
)
def test_a_broken_target_file_is_refused(
    tmp_path: Path, tables: dict[str, str], more: str, message: str
) -> None:
    with pytest.raises(rnnlower.OptionError, match=None) as caught:
        find_target(write(tmp_path, MINIMAL | tables, more))
    assert message in str(caught.value)


@pytest.mark.parametrize("missing", MINIMAL)
def test_a_target_file_without_a_table_is_refused(tmp_path: Path, missing: str) -> None:
    tables = {name: content for name, content in MINIMAL.items() if name != missing}
    with pytest.raises(rnnlower.OptionError, match=f"no table {missing}"):
        find_target(write(tmp_path, tables))


def test_a_missing_target_file_is_said_to_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "nope.toml"
    with pytest.raises(rnnlower.OptionError, match=r"nope\.toml does not exist; .*targets --new"):
        find_target(path)
    (tmp_path / "own.json").write_text("{}")
    with pytest.raises(rnnlower.OptionError, match=r"own.json does not end in \.toml"):
        find_target(tmp_path / "own.json")


def test_an_unknown_target_is_refused():
    with pytest.raises(rnnlower.OptionError, match=r"no target 'tinygrat'; did you mean 'tinygrad'\?"):
        find_target("tinygrat")
    with pytest.raises(rnnlower.OptionError, match="no target 'tensorflow'; it must be one of"):
        find_target("tensorflow")


MODEL = """
    <ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>
    g (float[T, 4] x, int64[2] shape) => (float[a, b] y)
    <float[4, 4] w = {0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0}>
    {
        product = MatMul(x, w)
        half = Cast<to = 10>(product)
        odd = com.acme.Odd(half)
        turned = Transpose<perm = [1, 0]>(odd)
        y = Reshape(turned, shape)
    }
"""


def misfit_reasons(tmp_path: Path, tables: dict[str, str], more: str = "") -> dict[str, list[str]]:
    """Return the reasons by operator."""
    model = onnx.parser.parse_model(MODEL)
    reasons: dict[str, list[str]] = {}
    for misfit in rnnlower.check(model, target=write(tmp_path, MINIMAL | tables, more)):
        assert misfit.source == "me"
        reasons.setdefault(misfit.op_type, []).append(misfit.reason)
    return reasons


def test_every_misfit_is_named(tmp_path: Path) -> None:
    reasons = misfit_reasons(tmp_path, {"opset": "range = [7, 13]"})
    assert reasons["(model)"] == ["opset 17 is not one of 7 to 13"]
    assert reasons["(input)"] == ["its shape is [T, 4]"]
    assert reasons["Cast"] == reasons["Cast"][:1] == ["own has no Cast"]
    assert reasons["com.acme.Odd"] == ["own has no operators of domain com.acme"]
    assert reasons["Reshape"] == ["own has no Reshape"]
    assert "MatMul" not in reasons


def test_odd_limits(tmp_path: Path) -> None:
    limits = """
        [[limits]]
        ops = ["HardSigmoid"]
        attributes = { alpha = [0.3] }
        last_axis = [6]
        [[limits]]
        ops = ["Tanh"]
        versions = [6]
        [[recurrent]]
        ops = ["RNN"]
        attributes = { clip = [0.3] }
        max_batch = 2
    """
    tables = {"opset": "range = [7, 2000000000]", "shapes": "static = false"}
    tables["ops"] = 'allowed = ["HardSigmoid", "Tanh"]'
    path = write(tmp_path, MINIMAL | tables, limits)
    path.write_text(f'source = "us"\n{path.read_text()}')

    def reasons(batch: str) -> list[str]:
        model = onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["" : 17]>
            g (float[3, {batch}, 2] x) => (float[3, 1, {batch}, 1] z)
            <float[1, 1, 2] w = {{1, 2}}, float[1, 1, 1] r = {{1}}> {{
                y = RNN <hidden_size = 1, clip = 0.3> (x, w, r)
                t = Tanh (y)
                z = HardSigmoid <alpha = 0.3> (t)
            }}
        """)
        return [f"{misfit.reason}; {misfit.remedy}" for misfit in rnnlower.check(model, target=path)]

    newest = "Tanh-13 is not one of version 6; rnnlower.convert(model, opset=12)"
    assert reasons("2") == [newest]
    unknown, second = reasons("n")
    assert unknown.startswith("own refuses RNN with batch size unknown;")
    assert second == newest


def test_gates_are_sliced_where_a_split_has_too_few_outputs(tmp_path: Path) -> None:
    ops = "Add Gemm MatMul Mul Reshape Concat Sigmoid Slice Split Squeeze Tanh Unsqueeze"
    tables = {"ops": f"allowed = {ops.split()}", "shapes": "static = false"}
    more = '[[limits]]\nops = ["Split"]\nmax_outputs = 2\nsource = "me"\n'
    model = Config(op_type="LSTM").build()
    lowered = rnnlower.lower(model, target=write(tmp_path, MINIMAL | tables, more))
    splits = [len(node.output) for node in lowered.graph.node if node.op_type == "Split"]
    assert splits
    assert max(splits) == 2
    assert rnnlower.verify(model, lowered, trials=1)


def test_violated_limits_are_misfits(tmp_path: Path) -> None:
    tables = {
        "shapes": "static = false",
        "dtypes": 'allowed = ["float32", "float16"]',
        "ops": 'allowed = ["Cast", "MatMul", "Reshape", "Transpose"]\ndomains = ["com.acme"]',
    }
    assert misfit_reasons(tmp_path, tables) == {}
    limits = """
        [[limits]]
        ops = ["Reshape"]
        constant = [1]
        source = "me"
        [[limits]]
        ops = ["Transpose"]
        attributes = { perm = [[0, 1]] }
        versions = [1]
        source = "me"
        [[limits]]
        ops = ["MatMul"]
        max_rank = 1
        dtypes = ["float16"]
        source = "me"
    """
    assert misfit_reasons(tmp_path, tables, limits) == {
        "Reshape": ["its input 1 is not a constant"],
        "Transpose": ["attribute perm is [1, 0], not [0, 1]", "Transpose-13 is not one of version 1"],
        "MatMul": [
            "its input has type float32, not float16",
            "its input has rank 2, above 1",
            "its output has rank 2, above 1",
        ],
    }


@pytest.mark.parametrize(
    ("attributes", "reasons"),
    [
        ("blocksize = 2", ["attribute mode is 'DCR', not 'CRD'"]),
        ('blocksize = 2, mode = "DCR"', ["attribute mode is 'DCR', not 'CRD'"]),
        ('blocksize = 2, mode = "CRD"', []),
    ],
)
def test_a_limit_holds_for_the_default_of_an_attribute(attributes: str, reasons: list[str]) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[1, 4, 2, 2] x) => (float[1, 1, 4, 4] y) {{ y = DepthToSpace <{attributes}> (x) }}
    """)
    found = rnnlower.check(model, target="ncnn")
    assert [each.reason for each in found] == reasons
    # No other opset has another mode.
    assert not any(each.remedy for each in found)


@pytest.mark.parametrize(
    ("ops", "reasons"),
    [
        ('allowed = ["Gelu", "com.acme.Odd"]', []),
        ('allowed = ["Gelu", "com.acme.Gelu"]', ["own has no com.acme.Odd"]),
        ('absent = ["com.acme.Odd"]\ndomains = ["com.acme"]', ["own has no com.acme.Odd"]),
        ('absent = ["com.acme.Gelu"]\ndomains = ["com.acme"]', []),
        ('absent = ["com.acme.Gelu"]', ["own has no operators of domain com.acme"]),
    ],
)
def test_operators_of_other_domains_have_names_of_their_own(
    tmp_path: Path, ops: str, reasons: list[str]
) -> None:
    assert misfit_reasons(tmp_path, {"ops": ops}).get("com.acme.Odd", []) == reasons


def test_tinygrad_has_some_operators_of_com_microsoft() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[2, 3, 4] X, float[1, 4, 16] W, float[1, 4, 16] R, float[1, 16] S, uint8[1, 16] Z)
            => (float[2, 1, 3, 4] Y)
        {
            x = com.microsoft.FastGelu(X)
            Y = com.microsoft.DynamicQuantizeLSTM<hidden_size = 4>(x, W, R, , , , , , S, Z, S, Z)
        }
    """
    misfits = rnnlower.check(onnx.parser.parse_model(text), target="tinygrad")
    assert [misfit.reason for misfit in misfits] == ["tinygrad has no com.microsoft.DynamicQuantizeLSTM"]


def test_onnxruntime_has_no_training_operators() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17, "ai.onnx.preview.training" : 1]>
        g (float R, int64 T, float[2] X, float[2] G, float[2] H) => (float[2] x, float[2] h)
        {
            x, h = ai.onnx.preview.training.Adagrad(R, T, X, G, H)
        }
    """
    misfits = rnnlower.check(onnx.parser.parse_model(text), target="onnxruntime")
    reasons = ["onnxruntime has no operators of domain ai.onnx.preview.training"]
    assert [misfit.reason for misfit in misfits] == reasons


def test_types_that_a_target_lacks_are_named(tmp_path: Path) -> None:
    tables = {"ops": 'allowed = ["Cast", "MatMul", "Reshape", "Transpose"]\ndomains = ["com.acme"]'}
    assert misfit_reasons(tmp_path, tables)["Cast"] == ["type float16 is not one of float32"]


RULE = """
    [[recurrent]]
    ops = ["LSTM"]
    dtypes = ["float32"]
    directions = ["forward", "bidirectional"]
    inputs = ["B", "initial_h"]
    attributes = { layout = [0], clip = [], input_forget = [0] }
    activations = ["default", "Relu"]
    constant = ["W"]
    same_activations = true
    semantics = ["ort"]
    wrong = ["layout", "reverse"]
    source = "me"
"""
RELU = ("Relu", "Relu", "Relu")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, ""),
        ({"initial_h": "input", "input_forget": 0, "layout": 0}, ""),
        ({"activations": RELU}, ""),
        (
            {"activations": ("Sigmoid", "Tanh", "Relu")},
            "own refuses LSTM with activations Relu, Sigmoid, Tanh",
        ),
        ({"layout": 1}, "own gets LSTM with attribute layout = 1 silently wrong"),
        ({"direction": "reverse"}, "own gets LSTM with direction reverse silently wrong"),
        ({"clip": 0.5}, "own refuses LSTM with attribute clip = 0.5"),
        ({"input_forget": 1}, "own refuses LSTM with attribute input_forget = 1"),
        ({"P": "initializer"}, "own refuses LSTM with input P"),
        ({"sequence_lens": "input"}, "own refuses LSTM with input sequence_lens"),
        ({"W": "input"}, "own refuses LSTM with an input W that is not a constant"),
        ({"dtype": "float64"}, "own refuses LSTM with type float64"),
        ({"seq_length": 0}, "own refuses LSTM with no time steps or no rows"),
        (
            {"direction": "bidirectional", "activations": (*RELU, "Sigmoid", "Tanh", "Tanh")},
            "own refuses LSTM with activations Relu, Sigmoid, Tanh",
        ),
        ({"op_type": "RNN"}, "own has no RNN"),
    ],
)
def test_native_nodes_are_judged_by_their_attributes(
    tmp_path: Path, fields: dict[str, object], reason: str
) -> None:
    path = write(tmp_path, MINIMAL | {"dtypes": 'allowed = ["float32", "float64", "int32"]'}, RULE)
    model = Config(opset=14, **fields).build()  # type: ignore[arg-type]
    misfits = rnnlower.check(model, target=path)
    assert [misfit.reason for misfit in misfits][:1] == ([reason] if reason else [])
    remedy = f'rnnlower.lower(model, target="{path}")'
    assert all(misfit.remedy == remedy for misfit in misfits)
    kept = [node.op_type for node in model.graph.node] if not reason else []
    assert rnnlower.check(model, target=path, semantics="spec") != [] or not kept


@pytest.mark.parametrize("layout", [None, 0, 1])
@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_an_attribute_that_must_be_absent_is_not_written_with_its_default_either(
    op_type: str, layout: int | None
) -> None:
    """rknn-toolkit2 2.5.0 ends with "Unrecognized attribute: layout", whatever its value."""
    model = Config(op_type=op_type, layout=layout).build()
    reasons = [misfit.reason for misfit in rnnlower.check(model, target="rknn") if misfit.op_type == op_type]
    assert [f"attribute layout = {layout}" in reason for reason in reasons] == [True] * (layout is not None)
    (kept,) = (node for node in rnnlower.lower(model, target="rknn").graph.node if node.op_type == op_type)
    assert "layout" not in {attribute.name for attribute in kept.attribute}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, ""),
        ({"activations": RELU}, "own gets LSTM with activations Relu silently wrong"),
        ({"clip": 0.5}, "own gets LSTM with attribute clip = 0.5 silently wrong"),
        ({"sequence_lens": "input"}, "own gets LSTM with input sequence_lens silently wrong"),
    ],
)
def test_a_rule_may_hold_where_both_semantics_agree(
    tmp_path: Path, fields: dict[str, object], reason: str
) -> None:
    rule = RULE.replace('["ort"]', '["ort", "agreed"]').replace(" clip = [],", "")
    path = write(tmp_path, MINIMAL, rule.replace('"initial_h"]', '"sequence_lens"]'))
    model = Config(opset=14, **fields).build()  # type: ignore[arg-type]
    for semantics, reasons in (("ort", []), ("spec", [reason] if reason else [])):
        misfits = rnnlower.check(model, target=path, semantics=semantics)  # type: ignore[arg-type]
        assert [each.reason for each in misfits if each.op_type == "LSTM"] == reasons


def test_a_guess_is_marked(tmp_path: Path) -> None:
    guessed = {"opset": "range = [7, 9]\nguess = true"}
    (misfit,) = (
        misfit
        for misfit in rnnlower.check(
            onnx.parser.parse_model(MODEL), target=write(tmp_path, MINIMAL | guessed)
        )
        if misfit.op_type == "(model)"
    )
    assert misfit.guess
    assert str(misfit).endswith("(a guess)")


@pytest.mark.parametrize(
    ("limit", "reasons"), [("max_rank = 4", []), ("versions = [8, 13]", ["Expand does not exist at opset 7"])]
)
def test_an_operator_newer_than_the_opset(limit: str, reasons: list[str], tmp_path: Path) -> None:
    """Expand came with opset 8; runtimes run it all the same, unless they mind versions."""
    tables = MINIMAL | {"ops": 'allowed = ["Expand"]', "opset": "range = [1, 26]"}
    limits = f'[[limits]]\nops = ["Expand"]\n{limit}\nsource = "me"'
    model = onnx.parser.parse_model("""
        <ir_version: 4, opset_import: ["" : 7]>
        main (float[1] X) => (float[3] Y) <int64[1] sizes = {3}> { Y = Expand (X, sizes) }
    """)
    target = write(tmp_path, tables, limits)
    assert [each.reason for each in find_misfits(ir.from_proto(model), find_target(target))] == reasons
    # A check looks at the model as a lowering makes it: at the opset that has the operator.
    assert rnnlower.check(model, target=target) == []


def test_unknown_semantics_are_refused() -> None:
    with pytest.raises(rnnlower.OptionError, match="'onnx'"):
        rnnlower.check(Config().build(), target="onnxruntime", semantics="onnx")  # type: ignore[arg-type]
