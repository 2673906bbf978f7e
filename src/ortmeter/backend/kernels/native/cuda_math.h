// Elementary functions of CUDA under the names that expressions use.
#define FUNCTION static __device__ __forceinline__

template <class T> FUNCTION T infinity() { return T(1) / T(0); }
template <class T> FUNCTION T not_a_number() { return T(0) / T(0); }
FUNCTION float absolute(float x) { return fabsf(x); }
FUNCTION double absolute(double x) { return fabs(x); }
template <class T> FUNCTION T absolute(T x) { return x < 0 ? -x : x; }
FUNCTION float square_root(float x) { return sqrtf(x); }
FUNCTION double square_root(double x) { return sqrt(x); }
FUNCTION float round_down(float x) { return floorf(x); }
FUNCTION double round_down(double x) { return floor(x); }
FUNCTION float round_up(float x) { return ceilf(x); }
FUNCTION double round_up(double x) { return ceil(x); }
FUNCTION float round_to_even(float x) { return rintf(x); }
FUNCTION double round_to_even(double x) { return rint(x); }
FUNCTION float exponential(float x) { return expf(x); }
FUNCTION double exponential(double x) { return exp(x); }
FUNCTION float exp_minus_one(float x) { return expm1f(x); }
FUNCTION double exp_minus_one(double x) { return expm1(x); }
template <class T> FUNCTION T exp_of_opposite(T x) { return exponential(-x); }
FUNCTION float logarithm(float x) { return logf(x); }
FUNCTION double logarithm(double x) { return log(x); }
FUNCTION float log_one_plus(float x) { return log1pf(x); }
FUNCTION double log_one_plus(double x) { return log1p(x); }
FUNCTION float hyperbolic_tangent(float x) { return tanhf(x); }
FUNCTION double hyperbolic_tangent(double x) { return tanh(x); }
FUNCTION float error_function(float x) { return erff(x); }
FUNCTION double error_function(double x) { return erf(x); }

// Half types are held in 32 bits. No header of CUDA is needed: NVRTC often comes without them.
FUNCTION float from_half(uint16_t x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x));
  return result;
}
FUNCTION uint16_t to_half(float x) {
  uint16_t result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(x));
  return result;
}
FUNCTION float from_bfloat(uint16_t x) { return __uint_as_float(uint32_t(x) << 16); }
FUNCTION uint16_t to_bfloat(float x) {
  const uint32_t word = __float_as_uint(x);
  return x != x ? 0x7fc0 : uint16_t((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

// Ranks, in each input, of what makes the i-th element of the result.
template <int N, class Index>
FUNCTION void locate_by_axes(const Layout& layout, Index i, int64_t (&ranks)[N]) {
#pragma unroll 1
  for (int axis = layout.rank - 1; axis > 0; --axis) {
    const Index size = layout.sizes[axis], column = i % size;
    i /= size;
#pragma unroll
    for (int k = 0; k < N; ++k) ranks[k] += column * layout.strides[k][axis];
  }
#pragma unroll
  for (int k = 0; k < N; ++k) ranks[k] += i * layout.strides[k][0];
}
template <int N> FUNCTION void locate(const Layout& layout, int64_t i, int64_t (&ranks)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) ranks[k] = 0;
  // A division of 64 bits takes as long as several reads.
  if (layout.total >> 32) locate_by_axes<N, unsigned long long>(layout, i, ranks);
  else locate_by_axes<N, uint32_t>(layout, i, ranks);
}
