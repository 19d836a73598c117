"""The kinds of numbers, by the names that torch and safetensors give them, and the exception for a rejected file."""

from __future__ import annotations

from typing import Callable, Tuple

FLOATS = {
    "Double": ("d", 8),
    "Float": ("f", 4),
    "Half": ("e", 2),
    "BFloat16": ("bf16", 2),
    "ComplexDouble": ("d", 8),
    "ComplexFloat": ("f", 4),
    "Float8_e4m3fn": ("e4m3", 1),
    "Float8_e5m2": ("e5m2", 1),
    "Float8_e4m3fnuz": ("fnuz", 1),
    "Float8_e5m2fnuz": ("fnuz", 1),
    "Float8_e8m0fnu": ("e8m0", 1),
    "ComplexHalf": ("e", 2),
}
"""By torch's name: how its numbers are unpacked, and bytes in each."""
SIZES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "ComplexDouble": 16, "ComplexFloat": 8, "Long": 8, "Int": 4,
    "Short": 2, "Char": 1, "Byte": 1, "Bool": 1, "QInt8": 1, "QUInt8": 1, "QInt32": 4, "Untyped": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "UInt16": 2, "UInt32": 4, "UInt64": 8,
    "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1, "Float8_e8m0fnu": 1, "Float4_e2m1fn_x2": 1, "ComplexHalf": 4,
}  # fmt: skip
"""Bytes in each element, by torch's name of the storage."""
DTYPES = {
    "float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "complex128": "ComplexDouble",
    "complex64": "ComplexFloat", "int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte",
    "bool": "Bool", "float8_e4m3fn": "Float8_e4m3fn", "float8_e5m2": "Float8_e5m2", "uint16": "UInt16",
    "uint32": "UInt32", "uint64": "UInt64", "float8_e4m3fnuz": "Float8_e4m3fnuz", "float8_e5m2fnuz": "Float8_e5m2fnuz",
    "float8_e8m0fnu": "Float8_e8m0fnu", "float4_e2m1fn_x2": "Float4_e2m1fn_x2", "complex32": "ComplexHalf",
}  # fmt: skip

SAFETENSORS = {
    "F64": "Double", "F32": "Float", "F16": "Half", "BF16": "BFloat16", "C64": "ComplexFloat", "I64": "Long",
    "I32": "Int", "I16": "Short", "I8": "Char", "U8": "Byte", "BOOL": "Bool", "U16": "UInt16", "U32": "UInt32",
    "U64": "UInt64", "F8_E4M3": "Float8_e4m3fn", "F8_E5M2": "Float8_e5m2",
    "F8_E4M3FNUZ": "Float8_e4m3fnuz", "F8_E5M2FNUZ": "Float8_e5m2fnuz", "F8_E8M0": "Float8_e8m0fnu",
}  # fmt: skip

Path = Tuple[str, ...]
Read = Callable[[int, int], bytes]
"""(start, length) -> bytes"""
Place = Tuple[Read, int, int]
"""How to read the data of a storage, where it begins, and its length in bytes."""
PlaceOf = Callable[[str], Place]


class Rejected(Exception):  # noqa: N818 - a verdict, no error
    """Why the file is no proven checkpoint, for a person."""
