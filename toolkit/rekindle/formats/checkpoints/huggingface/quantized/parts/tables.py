"""The numbers of the codes of each format, float32."""

from typing import Final

import ml_dtypes
import numpy as np

_BYTES: Final = np.arange(256, dtype=np.uint8)

E4M3: Final = _BYTES.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
E5M2: Final = _BYTES.view(ml_dtypes.float8_e5m2).astype(np.float32)
INT8: Final = _BYTES.view(np.int8).astype(np.float32)
UINT8: Final = _BYTES.astype(np.float32)
E2M1: Final = _BYTES[:16].view(ml_dtypes.float4_e2m1fn).astype(np.float32)
UINT4: Final = UINT8[:16]
FP8: Final = {"F8_E4M3": E4M3, "F8_E5M2": E5M2}
