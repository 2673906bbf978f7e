"""Compare float32 outputs of two backends, whose kernels add in different orders."""

import numpy as np


def assert_same(expected, got, terms):
    """Accept √n ulp of the largest output, where n is the number of terms of the longest sum."""
    ulp = np.spacing(np.float32(np.abs(expected).max()))
    np.testing.assert_allclose(got, expected, rtol=0, atol=np.sqrt(terms) * ulp)
