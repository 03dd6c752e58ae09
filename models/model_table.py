"""The table of small models: the name, the purpose and the content of each.

A row is ``name: (reason, config)``; ``Config`` is explained in ``tests/configs.py``. A new model is a new row
and a run of ``python models/generate.py``.
"""

from __future__ import annotations

from typing import Any

from support.configs import OUTPUTS, Config


def _config(op_type: str, opset: int, **changes: Any) -> Config:
    """Return T 5, B 2, I 3, H 4 and every output a graph output, unless ``changes`` say otherwise."""
    sizes: dict[str, Any] = {"seq_length": 5, "batch_size": 2, "input_size": 3, "hidden_size": 4}
    outputs = dict.fromkeys(OUTPUTS[op_type], "graph")
    arguments: dict[str, Any] = {"op_type": op_type, "opset": opset} | sizes | outputs | changes
    return Config(**arguments)


def _lstm(opset: int, **changes: Any) -> Config:
    return _config("LSTM", opset, **changes)


def _gru(opset: int, **changes: Any) -> Config:
    return _config("GRU", opset, **changes)


def _rnn(opset: int, **changes: Any) -> Config:
    return _config("RNN", opset, **changes)


_STATES = {"initial_h": "input", "initial_c": "input"}
_BOTH_WAYS = {"direction": "bidirectional"}
_HARD = ("HardSigmoid", "Tanh", "Tanh")

_LSTM_ATTRIBUTES: dict[str, tuple[str, Config]] = {
    "lstm14_defaults": ("The plain case: forward, bias, nothing else.", _lstm(14)),
    "lstm07_reverse": (
        "Walks from the last step, results at their own positions.",
        _lstm(7, direction="reverse"),
    ),
    "lstm14_bidirectional": ("Two directions with weights of their own.", _lstm(14, **_BOTH_WAYS)),
    "lstm14_layout1": ("Batch first: X, Y and the states are transposed.", _lstm(14, layout=1, **_STATES)),
    "lstm14_bidirectional_layout1_clip": (
        "Three attributes that runtimes ignore, together.",
        _lstm(14, layout=1, clip=0.3, **_BOTH_WAYS),
    ),
    "lstm14_clip": ("The cell clip bounds what the gates see.", _lstm(14, clip=0.25, x_scale=3.0)),
    "lstm14_clip_relu_of_cell": (
        "The text clips Ct before h, onnxruntime does not; with Relu it shows.",
        _lstm(14, clip=0.2, activations=("Sigmoid", "Tanh", "Relu"), initial_c="input"),
    ),
    "lstm14_input_forget": ("Coupled gates: f = 1 - i.", _lstm(14, input_forget=1)),
    "lstm14_input_forget_peephole": (
        "Coupled gates leave the peephole of f unused.",
        _lstm(14, input_forget=1, P="initializer", initial_c="input"),
    ),
    "lstm14_activations_hard": (
        "The activations of older Keras models, default alpha and beta.",
        _lstm(14, activations=_HARD),
    ),
    "lstm14_activations_per_direction": (
        "Six functions; only those with parameters consume from the lists.",
        _lstm(
            14,
            activations=("HardSigmoid", "ScaledTanh", "Softsign", "Sigmoid", "LeakyRelu", "Elu"),
            activation_alpha=(0.25, 1.5, 0.1, 0.7),
            activation_beta=(0.4, 0.6),
            **_BOTH_WAYS,
        ),
    ),
    "lstm14_activation_alpha_short": (
        "The lists end early; the defaults hold for the rest.",
        _lstm(
            14,
            activations=("HardSigmoid", "LeakyRelu", "HardSigmoid"),
            activation_alpha=(0.3,),
            activation_beta=(0.45,),
        ),
    ),
    "lstm14_no_hidden_size": (
        "hidden_size is optional in the text: R tells it.",
        _lstm(14, hidden_size_given=False),
    ),
}

_LSTM_INPUTS: dict[str, tuple[str, Config]] = {
    "lstm14_no_bias": ("B is left out of the list.", _lstm(14, B="omitted")),
    "lstm14_peephole": (
        "i and f see the cell before the step, o the one after it.",
        _lstm(14, P="initializer", initial_c="input"),
    ),
    "lstm14_peephole_all_else_empty": ('Four "" between R and P.', _lstm(14, B="empty", P="initializer")),
    "lstm14_states": ("Both states are graph inputs.", _lstm(14, **_STATES)),
    "lstm14_initial_h_only": ("A hidden state without a cell state.", _lstm(14, initial_h="initializer")),
    "lstm14_initial_c_only": ("A cell state behind an empty hidden state.", _lstm(14, initial_c="input")),
    "lstm14_states_are_one_tensor": (
        "initial_h and initial_c read the same value.",
        _lstm(14, initial_h="input", initial_c="same"),
    ),
    "lstm17_states_expanded": (
        "States expanded to X's batch size, as exporters write it.",
        _lstm(17, initial_h="expanded", initial_c="expanded", x_dims="batch", **_BOTH_WAYS),
    ),
    "lstm14_sequence_lens": (
        "Rows of different lengths in both directions; zeros past the end.",
        _lstm(14, sequence_lens="input", batch_size=3, **_BOTH_WAYS),
    ),
    "lstm14_sequence_lens_states": (
        "Of a row of length 0 and its states, text and onnxruntime think differently.",
        _lstm(14, sequence_lens="input", batch_size=3, **_STATES),
    ),
    "lstm14_reverse_sequence_lens_constant": (
        "Lengths known beforehand; the reverse direction starts at the end of each row.",
        _lstm(14, sequence_lens="initializer", direction="reverse", batch_size=3),
    ),
    "lstm14_layout1_sequence_lens_states": (
        "Lengths and states together with batch first.",
        _lstm(14, layout=1, sequence_lens="input", batch_size=3, **_STATES),
    ),
    "lstm17_weights_computed": (
        "Unsqueeze <- Concat <- Slice of stored constants, as PyTorch exports.",
        _lstm(17, W="computed", R="computed", B="computed", **_BOTH_WAYS),
    ),
    "lstm09_weights_computed": (
        "The same with Slice and Unsqueeze by attributes.",
        _lstm(9, W="computed", R="computed", B="computed"),
    ),
    "lstm13_weights_dequantized": (
        "8-bit weights behind DequantizeLinear.",
        _lstm(13, W="dequantized", R="dequantized"),
    ),
    "lstm13_weights_constant_nodes": (
        "Weights in Constant nodes.",
        _lstm(13, W="constant", R="constant", B="constant"),
    ),
    "lstm17_weights_runtime": ("W, R and B are graph inputs.", _lstm(17, W="input", R="input", B="input")),
    "lstm17_weights_overridable": (
        "W and R are initializers and graph inputs: their values are defaults only.",
        _lstm(17, W="initializer_input", R="initializer_input"),
    ),
}

_LSTM_SHAPES: dict[str, tuple[str, Config]] = {
    "lstm14_dynamic": ("Time and batch have names.", _lstm(14, x_dims="symbolic", **_STATES)),
    "lstm14_dynamic_time": ("Only the time is open.", _lstm(14, x_dims="time", **_BOTH_WAYS)),
    "lstm14_unknown_rank": (
        "X comes out of a Reshape to a run-time shape.",
        _lstm(14, x_dims="unknown_rank"),
    ),
    "lstm11_negative_dims": (
        "dim_value -1 for an open dimension, as Paddle writes.",
        _lstm(11, x_dims="negative"),
    ),
    "lstm14_all_ones": (
        "Every size is 1: nothing may squeeze a dimension too many.",
        _lstm(14, seq_length=1, batch_size=1, input_size=1, hidden_size=1),
    ),
    "lstm14_no_steps": ("A sequence of no steps.", _lstm(14, seq_length=0, **_STATES)),
    "lstm14_300_steps": (
        "Enough steps to show how a long unrolled graph loads.",
        _lstm(14, seq_length=300, batch_size=1, input_size=2, hidden_size=2),
    ),
    "lstm14_unused_outputs": (
        'Y is named and unused, Y_h is "", Y_c is read by a node.',
        _lstm(14, Y="unused", Y_h="empty", Y_c="consumed"),
    ),
    "lstm14_float64": ("No onnxruntime kernel for it runs.", _lstm(14, dtype="float64", P="initializer")),
    "lstm14_float16": ("Half precision.", _lstm(14, dtype="float16", **_BOTH_WAYS)),
    "lstm22_bfloat16": ("A type that version 22 brought.", _lstm(22, dtype="bfloat16", **_STATES)),
    "lstm01_last_state_only": (
        "Version 1 without output_sequence: Y is left out.",
        _lstm(1, ir_version=3, Y="empty"),
    ),
    "lstm06_bidirectional_output_sequence": (
        "Version 1 with output_sequence, weights also graph inputs as IR version 3 wants.",
        _lstm(6, ir_version=3, output_sequence=1, P="initializer", **_BOTH_WAYS),
    ),
}

_LSTM_PLACES: dict[str, tuple[str, Config]] = {
    "lstm13_in_if": ("In a branch that holds its own weights.", _lstm(13, place="if", captured=False)),
    "lstm13_in_if_in_if_captured": (
        "Two branches deep; X, weights and states come from outside.",
        _lstm(13, place="if_in_if", x_dims="symbolic", **_STATES),
    ),
    "lstm13_in_if_in_loop_captured": (
        "A branch in a loop's body; the weights come from outside.",
        _lstm(13, place="if_in_loop"),
    ),
    "lstm13_in_loop_state_carried": (
        "The loop hands Y_h on as the next initial_h.",
        _lstm(13, place="loop", **_STATES),
    ),
    "lstm14_in_scan": ("In a Scan over a stack of sequences.", _lstm(14, place="scan", **_BOTH_WAYS)),
    "lstm18_function_ref_attr": (
        "In a model-local function whose attributes the node refers to.",
        _lstm(18, place="function", clip=0.5, **_BOTH_WAYS),
    ),
    "lstm18_function_absent_ref_attr": (
        "It also refers to attributes that the call leaves out.",
        _lstm(18, place="function", captured=False, all_refs=True),
    ),
}

_GRU: dict[str, tuple[str, Config]] = {
    "gru01_foward_default": (
        "Version 1's default direction is spelled foward, and is not written out here.",
        _gru(1, ir_version=3, output_sequence=1),
    ),
    "gru01_foward_explicit": (
        "The same, written out; Y_h is required there, Y is not.",
        _gru(1, ir_version=3, direction="foward", Y="empty"),
    ),
    "gru03_linear_before_reset": (
        "Version 3 brought linear_before_reset.",
        _gru(3, ir_version=3, linear_before_reset=1, output_sequence=1, Y_h="omitted"),
    ),
    "gru07_bidirectional": ("Two directions, version 7.", _gru(7, **_BOTH_WAYS)),
    "gru14_defaults": ("The plain case: r multiplies H before the product.", _gru(14, initial_h="input")),
    "gru14_linear_before_reset": (
        "r multiplies the product and its bias, as cuDNN, PyTorch and Keras do.",
        _gru(14, linear_before_reset=1, initial_h="input"),
    ),
    "gru14_linear_before_reset_no_bias": (
        "No Rbh inside the reset.",
        _gru(14, linear_before_reset=1, B="empty"),
    ),
    "gru14_bidirectional_sequence_lens_states": (
        "Lengths with states in both directions.",
        _gru(14, linear_before_reset=1, sequence_lens="input", initial_h="input", batch_size=3, **_BOTH_WAYS),
    ),
    "gru14_reverse_layout1": (
        "Batch first, backwards.",
        _gru(14, layout=1, direction="reverse", initial_h="input"),
    ),
    "gru14_clip": ("The clip reaches every activation's input.", _gru(14, clip=0.3, x_scale=3.0)),
    "gru14_activations_parameters": (
        "Parameters for each of four functions.",
        _gru(
            14,
            activations=("HardSigmoid", "ScaledTanh", "Sigmoid", "Affine"),
            activation_alpha=(0.3, 1.2, 0.5),
            activation_beta=(0.4, 0.8, 0.1),
            **_BOTH_WAYS,
        ),
    ),
    "gru14_softplus_softsign": (
        "Functions without parameters.",
        _gru(14, activations=("Softsign", "Softplus")),
    ),
    "gru17_dynamic_weights_computed": (
        "What PyTorch exports for dynamic axes.",
        _gru(17, linear_before_reset=1, x_dims="symbolic", W="computed", R="computed", initial_h="input"),
    ),
    "gru12_in_if_captured": ("A branch without weights of its own, If of opset 11.", _gru(12, place="if")),
    "gru13_in_loop_state_carried": (
        "Streaming in a Loop, reset before the product.",
        _gru(13, place="loop", initial_h="input"),
    ),
    "gru18_function_ref_attr": (
        "hidden_size and linear_before_reset are a function's attributes.",
        _gru(18, place="function", linear_before_reset=1),
    ),
    "gru22_bfloat16": ("A type that no onnxruntime kernel takes.", _gru(22, dtype="bfloat16")),
    "gru14_float16": ("Half precision.", _gru(14, dtype="float16", linear_before_reset=1)),
}

_RNN: dict[str, tuple[str, Config]] = {
    "rnn01_output_sequence": ("Version 1.", _rnn(1, ir_version=3, output_sequence=1)),
    "rnn07_defaults": ("The plain case.", _rnn(7, initial_h="input")),
    "rnn14_relu": ("PyTorch's other nonlinearity.", _rnn(14, activations=("Relu",), Y_h="consumed")),
    "rnn14_two_tanh_forward": (
        "The schema's own default names two functions for one direction.",
        _rnn(14, activations=("Tanh", "Tanh")),
    ),
    "rnn14_bidirectional_affine_scaled_tanh": (
        "Two functions that no ONNX operator offers.",
        _rnn(
            14,
            activations=("Affine", "ScaledTanh"),
            activation_alpha=(0.8, 1.2),
            activation_beta=(0.1, 0.7),
            **_BOTH_WAYS,
        ),
    ),
    "rnn14_thresholded_relu_default": (
        "The default alpha is 1 in the text and 0 in onnxruntime.",
        _rnn(14, activations=("ThresholdedRelu",), x_scale=2.0),
    ),
    "rnn14_clip_sequence_lens_states": (
        "Lengths with states and a clip, in both directions.",
        _rnn(14, clip=0.4, sequence_lens="input", initial_h="input", batch_size=3, **_BOTH_WAYS),
    ),
    "rnn14_layout1": ("Batch first.", _rnn(14, layout=1, initial_h="input")),
    "rnn14_last_state_only": ('Y is "", only the last state is read.', _rnn(14, Y="empty", x_dims="time")),
    "rnn14_in_scan_state_carried": ("Streaming in a Scan.", _rnn(14, place="scan", initial_h="input")),
    "rnn14_no_rows": ("A batch of no rows.", _rnn(14, batch_size=0, x_dims="symbolic")),
    "rnn22_bfloat16": ("A type that version 22 brought.", _rnn(22, dtype="bfloat16")),
}

TABLE: dict[str, tuple[str, Config]] = (
    _LSTM_ATTRIBUTES | _LSTM_INPUTS | _LSTM_SHAPES | _LSTM_PLACES | _GRU | _RNN
)
"""The reason and the config of every small model, by file name without ``.onnx``."""
