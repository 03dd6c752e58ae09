"""The table of fallbacks for nodes of a model: each form against onnxruntime's kernel of the operator."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.judge import run

from rnnlower.graph.walk import walk
from rnnlower.lowering.fallbacks import FALLBACKS
from rnnlower.passes import AdaptNodesPass


def numbers(count: int, shape: str, dtype: str = "uint8") -> str:
    """Return a constant of arbitrary bytes, or of small floats."""
    drawn = [(37 * index + 11) % 256 for index in range(count)]
    written = drawn if dtype == "uint8" else [each / 512 + 0.01 for each in drawn]
    return f"{{{dtype}[{shape}]: {', '.join(map(str, written))}}}"


CASES: dict[str, list[str]] = {
    "Abs": ["17; float[3, 4] x; Abs (x)"],
    "AveragePool": [
        "17; float[1, 2, 7] x; AveragePool <ceil_mode = 1, kernel_shape = [3], strides = [2]> (x)",
        "19; float[1, 2, 8, 9] x; AveragePool <ceil_mode = 1, kernel_shape = [3, 2], strides = [2, 3],"
        " pads = [1, 0, 1, 1]> (x)",
        '13; float[1, 2, 7] x; AveragePool <auto_pad = "SAME_LOWER", kernel_shape = [2]> (x)',
        "13; float[N, 2, T] x; AveragePool <kernel_shape = [3], pads = [1, 0]> (x)",
    ],
    "Equal": [
        "13; bool[3, 4] x, bool[3, 4] y; Equal (x, y)",
        "7; bool[3, 4] x, bool[4] y; Equal (x, y)",
    ],
    "Clip": [
        "9; float[3, 4] x; Clip <min = -0.5, max = 0.25> (x)",
        "9; float[3, 4] x; Clip <max = 0.25> (x)",
        "13; float[3, 4] x, float low, float high; Clip (x, low, high)",
        "13; float[3, 4] x, float high; Clip (x, , high)",
        "13; int64[3, 4] x, int64 low; Clip (x, low)",
    ],
    "Col2Im": [
        "18; float[2, 12, 5] x; Col2Im <strides = [1, 2]> (x, {int64[2]: 1, 12}, {int64[2]: 1, 4})",
        "18; float[2, 12, 9] x; Col2Im <strides = [2, 2], pads = [1, 1, 0, 0]>"
        " (x, {int64[2]: 6, 7}, {int64[2]: 2, 3})",
    ],
    "ConstantOfShape": [
        "13; float x; ConstantOfShape ({int64[3]: 2, 1, 3})",
        "13; float x; ConstantOfShape <value = float[1] {2.5}> ({int64[2]: 0, 3})",
        "13; float x; ConstantOfShape <value = int64[1] {-7}> ({int64[2]: 3, 2})",
        "13; float x; ConstantOfShape <value = bool[1] {1}> ({int64[1]: 4})",
        # The bits of 1.5.
        "13; float x; ConstantOfShape <value = float16[1] {15872}> ({int64[1]: 4})",
    ],
    "Conv": [
        "13; float[1, 2, 7, 8] x, float[3, 2, 3, 4] w, float[3] b;"
        ' Conv <auto_pad = "SAME_LOWER", strides = [2, 1]> (x, w, b)',
        '9; float[2, 4, 8] x, float[4, 1, 2] w; Conv <auto_pad = "SAME_UPPER", group = 4> (x, w)',
    ],
    "ConvTranspose": [
        "13; float[1, 2, 5, 4] x, float[2, 3, 3, 4] w, float[3] b;"
        ' ConvTranspose <auto_pad = "SAME_LOWER", strides = [2, 3]> (x, w, b)',
        "9; float[1, 2, 5] x, float[2, 3, 3] w;"
        ' ConvTranspose <auto_pad = "SAME_UPPER", strides = [2]> (x, w)',
        "13; float[1, 2, 5] x, float[2, 3, 4] w; ConvTranspose <output_shape = [9], strides = [2]> (x, w)",
        "13; float[1, 4, 5] x, float[4, 1, 3] w;"
        " ConvTranspose <output_shape = [12], output_padding = [1], group = 4, strides = [2],"
        " dilations = [2]> (x, w)",
        "13; float[1, 6, 5] x, float[6, 1, 3] w, float[6] b;"
        " ConvTranspose <group = 6, pads = [1, 0], strides = [2]> (x, w, b)",
        "9; float[2, 3, 4, 5] x, float[3, 1, 2, 3] w; ConvTranspose <group = 3, dilations = [2, 1]> (x, w)",
    ],
    "DFT": [
        "17; float[2, 8, 1] x; DFT <onesided = 1> (x)",
        "20; float[2, 5, 3, 2] x; DFT <inverse = 1, onesided = 1> (x, , {int64: 1})",
        "20; float[2, 8, 2] x; DFT (x, {int64: 4})",
    ],
    "DequantizeLinear": [
        "13; uint8[2, 3] x, float s, uint8 z; DequantizeLinear (x, s, z)",
        "13; int8[2, 3] x, float[3] s, int8[3] z; DequantizeLinear <axis = 1> (x, s, z)",
        "13; int32[2, 3] x, float s; DequantizeLinear (x, s)",
        "21; float16 s; DequantizeLinear ({uint16[3]: 3, 40001, 65535}, s)",
        "23; int8[2, 3] x, float16 s; DequantizeLinear <output_dtype = 1> (x, s)",
    ],
    "CumSum": [
        "14; float[2, 5, 4] x; CumSum <exclusive = 1, reverse = 1> (x, {int64[1]: 1})",
        "11; float[2, 5] x; CumSum (x, {int32[1]: -1})",
    ],
    "Div": ["17; float[3, 4] x, float[4] y; Div (x, y)"],
    "Einsum": [
        '12; float[2, 3] x, float[3, 4] y; Einsum <equation = "ij,jk"> (x, y)',
        '13; float[2, 5, 3] x, float[2, 4, 3] y; Einsum <equation = "bid,bjd->bij"> (x, y)',
        '13; float[2, 3, 4] x, float[2, 3] y; Einsum <equation = "abc,ab->ca"> (x, y)',
        '13; float[2, 3] x; Einsum <equation = "ij->ji"> (x)',
        '13; float[2, 5, 3] x, float[3, 4] y; Einsum <equation = "...i,ij->...j"> (x, y)',
        '13; float[2, 1, 5, 3] x, float[2, 4, 3, 6] y; Einsum <equation = "...ij,...jk"> (x, y)',
    ],
    "Elu": ["17; float[3, 4] x; Elu <alpha = 0.7> (x)", "17; float[3, 4] x; Elu (x)"],
    "Flatten": [
        "13; float[2, 3, 4] x; Flatten <axis = 2> (x)",
        "13; float[2, 3, 4] x; Flatten <axis = -1> (x)",
    ],
    "Gather": ["13; float[4, 3] x; Gather <axis = 1> (x, {int64[2, 2]: 2, 0, -1, 1})"],
    "GatherElements": [
        "13; float[5, 4] x; GatherElements (x, {int64[1, 4]: -1, 0, -2, 1})",
        "13; float[N, 4] x; GatherElements <axis = -1> (x, {int32[1, 2]: -1, 3})",
    ],
    "GatherND": [
        "13; float[5, 4] x; GatherND (x, {int64[2, 2]: -1, 0, 2, -2})",
        "13; float[T, 4] x; GatherND (x, {int64[2, 1]: -1, 0})",
        "13; float[N, 5, 4] x; GatherND <batch_dims = 1> (x, {int64[1, 2, 1]: -1, 1})",
    ],
    "Gelu": ["20; float[3, 4] x; Gelu (x)", '20; float[3, 4] x; Gelu <approximate = "tanh"> (x)'],
    "Gemm": [
        "13; float[2, 3] a, float[3, 4] b; Gemm (a, b)",
        "13; float[3, 2] a, float[4, 3] b, float[4] c; Gemm <transA = 1, transB = 1, alpha = 0.5, beta = 2.0>"
        " (a, b, c)",
        "9; float[2, 3] a, float[3, 4] b, float[2, 1] c; Gemm (a, b, c)",
        "13; float[2, 3] a, float[3, 4] b; Gemm <beta = 0.0> (a, b, {float[4]: nan, inf, 1, 2})",
    ],
    "Greater": ["13; float[3, 4] x, float[4] y; Greater (x, y)"],
    "Hardmax": ["11; float[2, 3, 4] x; Hardmax (x)"],
    "HardSigmoid": ["17; float[3, 4] x; HardSigmoid (x)"],
    "Identity": ["17; float[3, 4] x; Identity (x)"],
    "LayerNormalization": [
        "17; float[2, 3, 4] x, float[4] s; LayerNormalization (x, s)",
        "17; float[2, 3, 4] x, float[3, 4] s, float[3, 4] b; LayerNormalization <axis = 1, epsilon = 0.1>"
        " (x, s, b)",
        "18; float16[2, 3, 4] x, float16[4] s; LayerNormalization (x, s)",
    ],
    "LeakyRelu": ["17; float[3, 4] x; LeakyRelu (x)"],
    "Less": ["13; float[3, 4] x, float[4] y; Less (x, y)"],
    "LogSoftmax": ["9; float[2, 3, 4] x; LogSoftmax <axis = 1> (x)"],
    "InstanceNormalization": [
        "17; float[2, 3, 5] x, float[3] s, float[3] b; InstanceNormalization <epsilon = 0.1> (x, s, b)",
        "6; float[1, 4, 7] x, float[4] s, float[4] b; InstanceNormalization (x, s, b)",
    ],
    "LpNormalization": [
        "11; float[2, 3, 4] x; LpNormalization (x)",
        "17; float[2, 3, 4] x; LpNormalization <axis = 1, p = 1> (x)",
        "22; float[2, 3] x; LpNormalization <axis = 0> (x)",
        "22; float[2, 3] x; LpNormalization ({float[2, 2]: 0, 0, 3, 4})",
    ],
    "LpPool": ["18; float[1, 2, 7] x; LpPool <kernel_shape = [3], p = 3, pads = [1, 0]> (x)"],
    "MatMul": [
        "13; float[2, 5, 4] a, float[4] b; MatMul (a, b)",
        "9; float[4] a, float[2, 4, 3] b; MatMul (a, b)",
        "9; float[4] a, float[4] b; MatMul (a, b)",
        "13; float[3, 4] a; MatMul (a, {float[4]: 1, 2, 3, 4})",
    ],
    "MaxPool": [
        "11; float[N, 2, T] x; MaxPool <dilations = [2], kernel_shape = [1]> (x)",
        "13; float[1, 2, 7] x; MaxPool <ceil_mode = 1, kernel_shape = [3], strides = [2]> (x)",
        "13; float[1, 2, 8] x; MaxPool <ceil_mode = 1, kernel_shape = [3], strides = [2]> (x)",
        "13; float[1, 2, 8, 9] x; MaxPool <ceil_mode = 1, kernel_shape = [3, 2], strides = [2, 3],"
        " pads = [1, 0, 1, 1]> (x)",
        "13; float[1, 1, 9] x;"
        " MaxPool <ceil_mode = 1, kernel_shape = [2], strides = [2], dilations = [2]> (x)",
        # The last window would begin in the padding.
        "13; float[1, 1, 4] x; MaxPool <ceil_mode = 1, kernel_shape = [1], strides = [3], pads = [0, 0]> (x)",
    ],
    "Neg": ["17; float[3, 4] x; Neg (x)", "17; int64[3, 4] x; Neg (x)"],
    "Pad": [
        '13; float[1, 4] x; Pad <mode = "edge"> (x, {int64[4]: 0, 2, 0, 3})',
        "13; float[3, 4] x; Pad (x, {int64[4]: -1, 2, 1, -3}, {float: 7.5})",
        "11; float[N, 4] x; Pad (x, {int64[4]: 0, 0, 0, -1})",
        '19; float[3, 4] x; Pad <mode = "wrap"> (x, {int64[4]: 0, 2, 0, 3})',
    ],
    "QuantizeLinear": [
        "13; float[2, 3] x, float s, uint8 z; QuantizeLinear (x, s, z)",
        "13; float[2, 3] x, float[2] s, int8[2] z; QuantizeLinear <axis = 0> (x, s, z)",
        "13; float[2, 3] x, float s; QuantizeLinear (x, s)",
        # The bits of 400.25 and 600.
        "21; float16 s, uint16 z; QuantizeLinear ({float16[2]: 24129, 24752}, s, z)",
    ],
    "PRelu": ["11; float[2, 3, 4] x, float[3, 1] slope; PRelu (x, slope)"],
    "Reciprocal": ["17; float[3, 4] x; Reciprocal (x)"],
    "Relu": ["17; float[3, 4] x; Relu (x)"],
    "Reshape": ["14; float[4, 3] x; Reshape <allowzero = 1> (x, {int64[2]: 2, -1})"],
    "ReverseSequence": ["13; float[3, 2] x; ReverseSequence (x, {int64[2]: 3, 3})"],
    "ScatterElements": [
        "18; float[5, 4] x, float[1, 4] u; ScatterElements (x, {int64[1, 4]: -1, 0, -2, 1}, u)",
        "18; float[N, 4] x, float[1, 2] u; ScatterElements <axis = -1> (x, {int32[1, 2]: -1, 1}, u)",
    ],
    "ScatterND": [
        "16; float[3, 2] x, float[1, 2] u; ScatterND (x, {int64[1, 1]: 1}, u)",
        "18; float[5, 4] x, float[1, 4] u; ScatterND (x, {int64[1, 1]: -1}, u)",
    ],
    "STFT": [
        "17; float[2, 20, 1] x; STFT (x, {int64: 4}, , {int64: 8})",
        "17; float[2, 20] x; STFT (x, {int64: 4}, , {int64: 8})",
        "17; float[N, 20] x; STFT (x, {int64: 4}, , {int64: 8})",
        "17; double[2, 20] x; STFT (x, {int64: 4}, , {int64: 8})",
        "17; float[N, 20, 1] x; STFT <onesided = 0> (x, {int64: 4}, {float[4]: 0.1, 0.7, 1.0, 0.7})",
    ],
    "Sigmoid": ["17; float[3, 4] x; Sigmoid (x)"],
    "SimplifiedLayerNormalization": ["17; float[2, 3, 4] x, float[4] s; SimplifiedLayerNormalization (x, s)"],
    "Slice": ["13; float[5] x; Slice (x, {int64[1]: -1}, {int64[1]: -9}, {int64[1]: 0}, {int64[1]: -1})"],
    "Softmax": [
        "9; float[2, 3, 4] x; Softmax (x)",
        "11; float[2, 3, 4] x; Softmax <axis = -2> (x)",
        "11; float[N, T, 4] x; Softmax <axis = 0> (x)",
    ],
    "Softplus": ["17; float[3, 4] x; Softplus (x)"],
    "Softsign": ["17; float[3, 4] x; Softsign (x)"],
    "Split": ["13; float[4, 3] x; Split <axis = 0> (x)"],
    "Squeeze": [
        "9; float[2, 1, 3, 1] x; Squeeze (x)",
        "9; float[2, 1, 3, 1] x; Squeeze <axes = [1]> (x)",
        "13; float[2, 1, 3, 1] x; Squeeze (x)",
        "13; float[N, 1, 3, 1] x; Squeeze (x, {int64[1]: 1})",
    ],
    "Sub": ["13; float[3, 4] x, float[4] y; Sub (x, y)", "13; int64[3, 4] x, int64[4] y; Sub (x, y)"],
    "Sum": ["13; float[3, 4] x, float[4] y, float z; Sum (x, y, z)", "13; float[3, 4] x; Sum (x)"],
    "Tanh": ["17; float[3, 4] x; Tanh (x)"],
    "Unsqueeze": [
        "9; float[2, 3] x; Unsqueeze <axes = [0, 2]> (x)",
        "13; int32[N] x; Unsqueeze (x, {int64[1]: 0})",
    ],
    "com.microsoft.Attention": [
        f"17; float[2, 5, 6] x, float[6, {sum(sizes)}] w, float[{sum(sizes)}] b{more}; Attention"
        f" <num_heads = 2, qkv_hidden_sizes = [{', '.join(map(str, sizes))}]{attributes}> (x, w, b{names})"
        for sizes, more, attributes, names in (
            ((8, 8, 8), "", "", ""),
            ((8, 8, 12), "", ", scale = 0.3", ""),
            ((8, 8, 8), ", int32[2, 5] m", "", ", m"),
            ((8, 8, 8), ", int32[2, 5, 5] m", ", mask_filter_value = -3.0", ", m"),
            ((8, 8, 8), ", int32[2, 5] m, float[2, 2, 5, 5] a", "", ", m, , a"),
        )
    ]
    + ["17; float[1, 5, 6] x, float[6, 12] w, float[12] b; Attention <num_heads = 2> (x, w, b)"],
    "com.microsoft.BiasGelu": ["17; float[2, 4] x, float[4] b; BiasGelu (x, b)"],
    "com.microsoft.DequantizeLinear": [
        "17; uint16[2, 3] x, float s, uint16 z; DequantizeLinear (x, s, z)",
        "17; int8[2, 3] x, float[3] s, int8[3] z; DequantizeLinear <axis = 1> (x, s, z)",
        "21; int16[2, 3] x, float s, int16 z; DequantizeLinear (x, s, z)",
    ],
    "com.microsoft.DynamicQuantizeMatMul": [
        "17; float[2, 4] a, int8[4, 3] b, float s; DynamicQuantizeMatMul (a, b, s)",
        "17; float[2, 4] a, uint8[4, 3] b, float[3] s, uint8[3] z, float[3] c;"
        " DynamicQuantizeMatMul (a, b, s, z, c)",
    ],
    "com.microsoft.FastGelu": [
        "17; float[2, 4] x; FastGelu (x)",
        "20; float[2, 4] x, float[4] b; FastGelu (x, b)",
    ],
    "com.microsoft.FusedConv": [
        "17; float[1, 2, 9] x, float[3, 2, 3] w, float[3] b;"
        ' FusedConv <activation = "Relu", pads = [1, 1]> (x, w, b)',
        "17; float[1, 2, 9] x, float[3, 2, 3] w;"
        ' FusedConv <activation = "LeakyRelu", activation_params = [0.3],'
        ' kernel_shape = [3], strides = [2], dilations = [2], auto_pad = "NOTSET"> (x, w)',
        "17; float[1, 2, 9] x, float[3, 2, 3] w;"
        ' FusedConv <activation = "Clip", activation_params = [-0.5, 0.5]>'
        " (x, w)",
        '17; float[1, 2, 9] x, float[3, 2, 3] w; FusedConv <activation = "HardSigmoid",'
        " activation_params = [0.3, 0.4]> (x, w)",
        "17; float[1, 2, 9] x, float[4, 1, 3] w, float[4] b, float[1, 4, 7] z;"
        ' FusedConv <activation = "Relu", group = 2> (x, w, b, z)',
        "17; float[1, 2, 9] x, float[3, 2, 3] w, float[1, 3, 7] z;"
        ' FusedConv <activation = "Tanh"> (x, w, , z)',
    ],
    "com.microsoft.FusedGemm": [
        "17; float[2, 3] a, float[4, 3] b, float[4] c;"
        f" FusedGemm <activation = {activation}, transB = 1> (a, b, c)"
        for activation in (
            '"Relu"',
            '"Tanh"',
            '"Sigmoid"',
            '"Softplus"',
            '"Softsign"',
            '"Elu", activation_alpha = 0.3',
            '"LeakyRelu", activation_alpha = 0.3',
            '"HardSigmoid", activation_alpha = 0.3, activation_beta = 0.4',
            '"Relu", activation_gamma = 2.0',
        )
    ]
    + ['17; float[3, 2] a, float[3, 4] b; FusedGemm <activation = "Relu", transA = 1, alpha = 0.5> (a, b)'],
    "com.microsoft.FusedMatMul": [
        f"17; {operands}; FusedMatMul <alpha = 0.5, {attributes}> (a, b)"
        for operands, attributes in (
            ("float[2, 3] a, float[3, 4] b", "transA = 0"),
            ("float[3, 2] a, float[4, 3] b", "transA = 1, transB = 1"),
            ("float[5, 3, 2] a, float[5, 3, 4] b", "transA = 1"),
            ("float[2, 5, 3] a, float[5, 3, 4] b", "transBatchA = 1"),
            ("float[3, 5, 6, 2] a, float[5, 6, 3, 4] b", "transBatchA = 1, transA = 1"),
            ("float[5, 6, 2, 3] a, float[4, 5, 6, 3] b", "transBatchB = 1, transB = 1"),
        )
    ],
    "com.microsoft.Gelu": ["17; float[2, 4] x; Gelu (x)", "20; float[2, 4] x; Gelu (x)"],
    "com.microsoft.MatMulIntegerToFloat": [
        "17; uint8[2, 4] a, int8[4, 3] b, float s, float[3] t; MatMulIntegerToFloat (a, b, s, t)",
        "17; uint8[2, 4] a, uint8[4, 3] b, float s, float t, uint8 y, uint8 z, float[3] c;"
        " MatMulIntegerToFloat (a, b, s, t, y, z, c)",
    ],
    "com.microsoft.MatMulNBits": [
        f"17; float[3, 40] a{more}; MatMulNBits <K = 40, N = 4, bits = {bits}, block_size = 16> (a,"
        f" {numbers(4 * 3 * 2 * bits, f'4, 3, {2 * bits}')}, {numbers(12, '4, 3', 'float')}{rest})"
        for bits, zeros in ((4, 8), (8, 12))
        for more, rest in (
            ("", ""),
            ("", f", {numbers(zeros, f'4, {zeros // 4}')}"),
            (", float[4] c", ", , , c"),
        )
    ],
    "com.microsoft.QGemm": [
        "17; uint8[2, 4] a, float s, uint8 z, int8[4, 3] b, float t, int8 y, int32[3] c, float u, uint8 v;"
        " QGemm (a, s, z, b, t, y, c, u, v)",
        "17; uint8[4, 2] a, float s, uint8 z, int8[3, 4] b, float[3] t, int8[3] y, int32[3] c;"
        " QGemm <transA = 1, transB = 1, alpha = 0.5> (a, s, z, b, t, y, c)",
        "17; uint8[2, 4] a, float s, uint8 z, int8[4, 3] b, float t, int8 y; QGemm (a, s, z, b, t, y)",
    ],
    "com.microsoft.QLinearAdd": [
        "17; uint8[2, 4] x, float s, uint8 z, uint8[4] y, float t, uint8 v, float u, uint8 w;"
        " QLinearAdd (x, s, z, y, t, v, u, w)",
        "17; int8[2, 4] x, float s, int8 z, int8[2, 4] y, float t, int8 v, float u, int8 w;"
        " QLinearAdd (x, s, z, y, t, v, u, w)",
    ],
    "com.microsoft.QLinearAveragePool": [
        "17; uint8[1, 2, 7, 7] x, float s, uint8 z, float u, uint8 w; QLinearAveragePool"
        " <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x, s, z, u, w)",
        "17; uint8[1, 7, 7, 2] x, float s, uint8 z, float u, uint8 w; QLinearAveragePool"
        " <kernel_shape = [3, 3], channels_last = 1> (x, s, z, u, w)",
    ],
    "com.microsoft.QLinearConcat": [
        "17; float u, uint8 w, uint8[2, 4] x, float s, uint8 z, uint8[2, 3] y, float t, uint8 v;"
        " QLinearConcat <axis = 1> (u, w, x, s, z, y, t, v)",
    ],
    "com.microsoft.QLinearGlobalAveragePool": [
        "17; uint8[1, 2, 7, 7] x, float s, uint8 z, float u, uint8 w; QLinearGlobalAveragePool"
        " <channels_last = 0> (x, s, z, u, w)",
        "17; uint8[1, 7, 7, 2] x, float s, uint8 z, float u, uint8 w; QLinearGlobalAveragePool"
        " <channels_last = 1> (x, s, z, u, w)",
    ],
    "com.microsoft.QLinearLeakyRelu": [
        "17; int8[2, 4] x, float s, int8 z, float u, int8 w; QLinearLeakyRelu <alpha = 0.3> (x, s, z, u, w)",
    ],
    "com.microsoft.QLinearMul": [
        "17; uint8[2, 4] x, float s, uint8 z, uint8[2, 4] y, float t, uint8 v, float u, uint8 w;"
        " QLinearMul (x, s, z, y, t, v, u, w)",
    ],
    "com.microsoft.QLinearSigmoid": [
        "17; uint8[2, 4] x, float s, uint8 z, float u, uint8 w; QLinearSigmoid (x, s, z, u, w)",
        "17; int8[2, 4] x, float s, int8 z, float u, int8 w; QLinearSigmoid (x, s, z, u, w)",
    ],
    "com.microsoft.QLinearSoftmax": [
        f"{opset}; uint8[2, 4] x; QLinearSoftmax <opset = {written}, axis = {axis}>"
        " (x, {float: 0.05}, {uint8: 100}, {float: 0.00390625}, {uint8: 0})"
        for opset, written, axis in ((17, 17, -1), (12, 13, 1))
    ],
    "com.microsoft.QLinearWhere": [
        "17; bool[2, 4] c, uint8[2, 4] x, float s, uint8 z, uint8[4] y, float t, uint8 v, float u, uint8 w;"
        " QLinearWhere (c, x, s, z, y, t, v, u, w)",
    ],
    "com.microsoft.QuantizeLinear": [
        "17; float[2, 3] x, float s, uint16 z; QuantizeLinear (x, s, z)",
        "17; float[2, 3] x, float[3] s, int8[3] z; QuantizeLinear <axis = 1> (x, s, z)",
    ],
    "com.microsoft.QuickGelu": [
        "17; float[2, 4] x; QuickGelu (x)",
        "17; float[2, 4] x; QuickGelu <alpha = 1.0> (x)",
    ],
    "com.microsoft.SkipLayerNormalization": [
        f"{opset}; float[2, 3, 4] x, float{skip} y, float[4] g{more}; SkipLayerNormalization <epsilon = 0.01>"
        f" (x, y, g{names})"
        for opset in (13, 17)
        for skip, more, names in (
            ("[2, 3, 4]", "", ""),
            ("[3, 4]", ", float[4] b", ", b"),
            ("[2, 3, 4]", ", float[4] b, float[4] c", ", b, c"),
            ("[2, 3, 4]", ", float[4] c", ", , c"),
        )
    ],
    "com.microsoft.SkipSimplifiedLayerNormalization": [
        "17; float[2, 3, 4] x, float[2, 3, 4] y, float[4] g; SkipSimplifiedLayerNormalization (x, y, g)",
        "17; float[2, 3, 4] x, float[2, 3, 4] y, float[4] g, float[4] c; SkipSimplifiedLayerNormalization"
        " <epsilon = 0.01> (x, y, g, c)",
    ],
    "com.microsoft.TransposeMatMul": [
        "17; float[3, 2] a, float[3, 4] b; TransposeMatMul <transA = 1> (a, b)",
    ],
}
"""The opset, the inputs, and the call, in which a constant is written in place."""

OUTPUTS = {"Split": 2}
OTHER_ATTRIBUTES = (
    *("AveragePool", "Conv", "ConvTranspose", "CumSum", "Gather", "GatherElements", "GatherND", "Hardmax"),
    *(
        "InstanceNormalization",
        "LogSoftmax",
        "LpPool",
        "MatMul",
        "MaxPool",
        "Pad",
        "Reshape",
        "ScatterElements",
        "ScatterND",
        "Softmax",
    ),
)
"""Operators that are expressed by themselves, with other attributes or inputs."""
QUANTIZED = ("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm")


def model_of(key: str, case: str) -> onnx.ModelProto:
    domain = key.rpartition(".")[0]
    opset, inputs, call = (part.strip() for part in case.split(";", 2))
    nodes: list[str] = []

    def constant(found: re.Match[str]) -> str:
        nodes.append(f"k{len(nodes)} = Constant <value = {found[1]} {{{found[2]}}}> ()")
        return f"k{len(nodes) - 1}"

    call = re.sub(r"\{([^}]*?): (.*?)\}", constant, call)
    outs = [f"o{number}" for number in range(OUTPUTS.get(key, 1))]
    nodes.append(f"{', '.join(outs)} = {domain + '.' if domain else ''}{call}")
    text = f"""<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>
        main ({inputs}) => ({", ".join(outs)}) {{ {" ".join(nodes)} }}"""
    return onnx.parser.parse_model(text)


def inputs_of(model: onnx.ModelProto, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw inputs; scales are the floats of a quantized model that have one axis at most."""
    feeds = {}
    quantizes = any("Linear" in node.op_type or node.op_type in QUANTIZED for node in model.graph.node)
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value or 2 for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype.kind == "f":
            is_scale = quantizes and value.name in ("s", "t", "u")
            drawn = rng.uniform(0.02, 0.05, shape) if is_scale else rng.standard_normal(shape)
        else:
            low, high = (100, 140) if dtype.kind == "u" else (-20, 20)
            low, high = (0, 2) if dtype.kind == "b" else (low, high)
            drawn = rng.integers(low, high, shape)
        feeds[value.name] = np.asarray(drawn, dtype)
    return feeds


def declare(model: onnx.ModelProto, outputs: dict[str, np.ndarray]) -> None:
    for value in model.graph.output:
        array = outputs[value.name]
        dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, dtype, array.shape))


def expressed(key: str, model: onnx.ModelProto) -> onnx.ModelProto:
    own = ir.from_proto(model)
    here = [*own.graph]

    def refused(node: ir.Node) -> bool:
        same = key == (f"{node.domain}." if node.domain else "") + node.op_type
        return same and (key not in OTHER_ATTRIBUTES or node in here)

    adapting = AdaptNodesPass(refused)
    adapting(own)
    assert list(adapting.adapted) == [key]
    assert not any(refused(node) for node, _ in walk(own.graph))
    return ir.to_proto(own)


@pytest.mark.parametrize(("key", "case"), [(key, case) for key in FALLBACKS for case in CASES[key]])
def test_a_fallback_computes_what_the_operator_does(key: str, case: str) -> None:
    model = model_of(key, case)
    declare(model, run(model, inputs_of(model, np.random.default_rng(0))))
    result = expressed(key, model)
    onnx.checker.check_model(result, full_check=True)
    for seed in range(3):
        feeds = inputs_of(model, np.random.default_rng(seed))
        expected, found = run(model, feeds), run(result, feeds)
        for name, want in expected.items():
            assert found[name].dtype == want.dtype
            if key.rpartition(".")[2].startswith("Q") and want.dtype.kind in "iu":
                # The kernels round other sums: within one step of the quantizer.
                apart = np.abs(found[name].astype(np.int64) - want.astype(np.int64))
                assert apart.max() <= 1
                assert want.size < 16 or np.mean(apart) < 0.2
            else:
                tolerance = 2e-3 if want.dtype == np.float16 else 2e-6
                np.testing.assert_allclose(found[name], want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("key", "case"), [(key, case) for key in ("Einsum", "MatMul") for case in CASES[key]]
)
def test_a_fallback_of_operators_that_are_lacking_too(key: str, case: str) -> None:
    """What a form emits is expressed in its turn, by the forms that take the inputs that it has."""
    model = model_of(key, case)
    declare(model, run(model, inputs_of(model, np.random.default_rng(0))))
    for other in {node.op_type for node in expressed(key, model).graph.node} & FALLBACKS.keys():
        own = ir.from_proto(model)
        AdaptNodesPass(lambda node, lacking=(key, other): node.op_type in lacking)(own)
        feeds = inputs_of(model, np.random.default_rng(0))
        expected, found = run(model, feeds), run(ir.to_proto(own), feeds)
        for name, want in expected.items():
            np.testing.assert_allclose(found[name], want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("key", "case"),
    [
        ("ConstantOfShape", "23; float x; ConstantOfShape <value = float8e4m3fn[1] {1}> ({int64[1]: 3})"),
        ("Einsum", '13; int8[2, 3] x, int8[3, 4] y; Einsum <equation = "ij,jk"> (x, y)'),
        ("Identity", "17; bool[2] x; Identity (x)"),
        (
            "MaxPool",
            '13; float[1, 2, 7] x; MaxPool <auto_pad = "SAME_UPPER", strides = [2], dilations = [2],'
            " kernel_shape = [3]> (x)",
        ),
        ("Identity", "17; string[2] x; Identity (x)"),
        ("Identity", "23; int4[2] x; Identity (x)"),
        ("PRelu", "11; int32[4] x, int32[4] slope; PRelu (x, slope)"),
        ("PRelu", "23; uint64[4] x, uint64[4] slope; PRelu (x, slope)"),
        ("Pad", '23; float8e5m2[1, 4] x; Pad <mode = "edge"> (x, {int64[4]: 0, 2, 0, 3})'),
        ("QuantizeLinear", "23; int32[2, 3] x, int32 s; QuantizeLinear (x, s)"),
        ("Sub", "14; uint8[4] x, uint8[4] y; Sub (x, y)"),
    ],
)
def test_a_fallback_is_not_used_where_it_would_compute_something_else(key: str, case: str) -> None:
    model = onnx.shape_inference.infer_shapes(model_of(key, case), strict_mode=True)
    onnx.checker.check_model(model, full_check=True)
    assert not AdaptNodesPass(lambda node: node.op_type == key)(ir.from_proto(model)).modified


@pytest.mark.parametrize(
    ("key", "case"),
    [
        (
            "com.microsoft.Attention",
            "17; float[1, 5, 6] x, float[6, 12] w, float[12] b, float[2, 1, 2, 3, 2] past;"
            " Attention <num_heads = 2> (x, w, b, , past)",
        ),
        (
            "com.microsoft.MatMulNBits",
            f"17; float[3, 32] a; MatMulNBits <K = 32, N = 1, bits = 4, block_size = 16>"
            f" (a, {numbers(16, '1, 2, 8')}, {numbers(2, '1, 2', 'float')}, ,"
            f" {{int32[32]: {', '.join('01' * 16)}}})",
        ),
    ],
)
def test_a_fallback_is_not_used_for_an_input_that_it_does_not_read(key: str, case: str) -> None:
    model = model_of(key, case)
    assert not AdaptNodesPass(lambda node: bool(node.domain))(ir.from_proto(model)).modified


def test_a_value_of_unknown_type_is_not_taken_for_floats() -> None:
    """onnx does not infer what com.microsoft's operators return: integers here."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        main (int32[3] x) => (int32[3] y)
        { h = com.microsoft.MurmurHash3 <positive = 0> (x)  y = Neg (h) }""")
    assert not AdaptNodesPass(lambda node: node.op_type == "Neg")(ir.from_proto(model)).modified
    text = onnx.printer.to_text(model).replace("Neg (h)", "Sub (h, x)")
    assert AdaptNodesPass(lambda node: node.op_type == "Sub")(ir.from_onnx_text(text)).modified


def test_an_output_that_a_node_leaves_out_does_not_take_a_name_away() -> None:
    """onnxruntime's optimizer writes such nodes; what these outputs would hold is read all the same."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        main (float[2, 3, 4] x, float[2, 3, 4] skip, float[4] g) => (float[2, 3, 4] y, float[2, 3, 4] sum)
        { y, , , sum = com.microsoft.SkipSimplifiedLayerNormalization (x, skip, g) }""")
    feeds = inputs_of(model, np.random.default_rng(0))
    result = expressed("com.microsoft.SkipSimplifiedLayerNormalization", model)
    for name, want in run(model, feeds).items():
        np.testing.assert_allclose(run(result, feeds)[name], want, rtol=2e-6, atol=2e-6)
