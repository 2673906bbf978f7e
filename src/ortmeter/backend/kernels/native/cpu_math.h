// Elementary functions that compilers turn into vector instructions: no branch, no table, no call.
//
// Errors, in ulp of float32 against float64, are below 3. Compiled with the rules of IEEE 754
// (no -ffast-math), so that NaN and infinities go through.
#include <cmath>
#include <limits>

#define FUNCTION static inline __attribute__((always_inline))

template <class To, class From> FUNCTION To bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "");
  To result;
  __builtin_memcpy(&result, &x, sizeof x);
  return result;
}

template <class T> struct Format;
template <> struct Format<float> {
  using Int = int32_t;
  static constexpr int digits = 23, log_terms = 4, log_one_plus_terms = 7;
  static constexpr float lowest_exp = -104.0f, highest_exp = 89.0f, normal_exp = 87.336f,
                         one_at_tanh = 10.0f;
  static constexpr float round = 0x1.8p23f, log2_high = 0x1.62e4p-1f, log2_low = 0x1.7f7d1cp-20f;
};
template <> struct Format<double> {
  using Int = int64_t;
  static constexpr int digits = 52, log_terms = 11, log_one_plus_terms = 16;
  static constexpr double lowest_exp = -746.0, highest_exp = 710.0, normal_exp = 708.396,
                          one_at_tanh = 20.0;
  static constexpr double round = 0x1.8p52, log2_high = 0x1.62e42fee00000p-1,
                          log2_low = 0x1.a39ef35793c76p-33;
};

FUNCTION float multiply_add(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
FUNCTION double multiply_add(double a, double b, double c) {
#ifdef __FP_FAST_FMA
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

template <class T> FUNCTION T infinity() { return std::numeric_limits<T>::infinity(); }
template <class T> FUNCTION T not_a_number() { return std::numeric_limits<T>::quiet_NaN(); }
FUNCTION float absolute(float x) { return __builtin_fabsf(x); }
FUNCTION double absolute(double x) { return __builtin_fabs(x); }
template <class T> FUNCTION T absolute(T x) { return x < 0 ? -x : x; }
FUNCTION float copy_sign(float x, float y) { return __builtin_copysignf(x, y); }
FUNCTION double copy_sign(double x, double y) { return __builtin_copysign(x, y); }
FUNCTION float square_root(float x) { return __builtin_sqrtf(x); }
FUNCTION double square_root(double x) { return __builtin_sqrt(x); }
FUNCTION float round_down(float x) { return __builtin_floorf(x); }
FUNCTION double round_down(double x) { return __builtin_floor(x); }
FUNCTION float round_up(float x) { return __builtin_ceilf(x); }
FUNCTION double round_up(double x) { return __builtin_ceil(x); }
FUNCTION float round_to_even(float x) { return __builtin_rintf(x); }
FUNCTION double round_to_even(double x) { return __builtin_rint(x); }

template <class T> FUNCTION T power_of_two(typename Format<T>::Int n) {
  constexpr int bias = std::numeric_limits<T>::max_exponent - 1;
  return bits<T>((n + bias) << Format<T>::digits);
}

// (exp(r) - 1 - r) / r^2 for |r| <= log(2) / 2: a minimax polynomial fitted on 3000 Chebyshev nodes
// (its error relative to r is below 2e-8), or the series of Taylor.
FUNCTION float exp_rest(float r) {
  constexpr float fitted[] = {0x1p-1f, 0x1.5554aep-3f, 0x1.555486p-5f, 0x1.12291ap-7f,
                              0x1.6d9a94p-10f};
  float p = fitted[4];
#pragma GCC unroll 4
  for (int i = 3; i >= 0; --i) p = multiply_add(p, r, fitted[i]);
  return p;
}
FUNCTION double exp_rest(double r) {
  constexpr double inverse[] = {0.5,          1.0 / 6,      1.0 / 24,      1.0 / 120,
                                1.0 / 720,    1.0 / 5040,   1.0 / 40320,   1.0 / 362880,
                                1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
  double p = inverse[11];
#pragma GCC unroll 16
  for (int i = 10; i >= 0; --i) p = multiply_add(p, r, inverse[i]);
  return p;
}

// exp(x) = 2^n (1 + tail), where |x - n log(2)| <= log(2) / 2.
template <class T> struct Reduced { typename Format<T>::Int n; T tail; };
template <class T> FUNCTION Reduced<T> reduce(T x) {
  using F = Format<T>;
  const T shifted = multiply_add(x, T(1.44269504088896340736), F::round);
  const T count = shifted - F::round;
  const T r = multiply_add(count, -F::log2_low, multiply_add(count, -F::log2_high, x));
  return {bits<typename F::Int>(shifted) - bits<typename F::Int>(F::round),
          multiply_add(r * r, exp_rest(r), r)};
}

template <class T> FUNCTION T exponential(T x) {
  x = x < Format<T>::lowest_exp ? Format<T>::lowest_exp : x;
  x = x > Format<T>::highest_exp ? Format<T>::highest_exp : x;
  const auto reduced = reduce(x);
  const auto half = reduced.n >> 1;  // in two factors: 2^n may be out of range where exp(x) is not
  return (T(1) + reduced.tail) * power_of_two<T>(half) * power_of_two<T>(reduced.n - half);
}

template <class T> FUNCTION T exp_of_opposite(T x) {  // for x >= 0; 0 where it is not normal
  const auto reduced = reduce(-x);
  const T result = (T(1) + reduced.tail) * power_of_two<T>(reduced.n);
  return x > Format<T>::normal_exp ? T(0) : result;
}

template <class T> FUNCTION T exp_minus_one(T x) {
  const T bounded = x > Format<T>::highest_exp ? Format<T>::highest_exp : x;
  const auto reduced = reduce(bounded < T(-40) ? T(-40) : bounded);
  const auto half = reduced.n >> 1;
  const T low = power_of_two<T>(half), high = power_of_two<T>(reduced.n - half);
  // Multiplied by a factor after the other, for 2^n may overflow; 1 is absorbed there.
  const T small = multiply_add(low * high, reduced.tail, low * high - T(1));
  const T result = x < T(40) ? small : (T(1) + reduced.tail) * low * high;
  return x == T(0) ? x : result;
}

template <class T> FUNCTION T hyperbolic_tangent(T x) {
  const T bound = Format<T>::one_at_tanh;
  T magnitude = absolute(x);
  magnitude = magnitude > bound ? bound : magnitude;
  const auto reduced = reduce(T(2) * magnitude);
  const T scale = power_of_two<T>(reduced.n);
  const T e = multiply_add(scale, reduced.tail, scale - T(1));
  return copy_sign(e / (e + T(2)), x);
}

// log(2^n (1 + f)) with the series of the inverse hyperbolic tangent of s = f / (2 + f).
template <class T> FUNCTION T logarithm(T x) {
  using F = Format<T>;
  using Int = typename F::Int;
  constexpr int bias = std::numeric_limits<T>::max_exponent - 1;
  constexpr T smallest = std::numeric_limits<T>::min(), two_to_digits = T(Int(1) << F::digits);
  const T normal = x < smallest ? x * two_to_digits : x;
  const Int lift = x < smallest ? F::digits : 0;
  const Int root_half = bits<Int>(T(0.70710678118654752440));
  const Int shifted = bits<Int>(normal) - root_half;
  const Int n = shifted >> F::digits;
  const T m = bits<T>(bits<Int>(normal) - (n << F::digits));
  const T f = m - T(1), s = f / (m + T(1)), z = s * s, half = T(0.5) * f * f;
  T series = T(2) / (2 * F::log_terms + 1);
#pragma GCC unroll 16
  for (int i = F::log_terms - 1; i > 0; --i)
    series = multiply_add(series, z, T(2) / (2 * i + 1));
  series *= z;
  // An integer of this size plus the rounding constant, read as a real number, is exact.
  const T count = bits<T>(bits<Int>(F::round) + (n - lift)) - F::round;
  const T result = multiply_add(
      count, F::log2_high,
      f - (half - multiply_add(s, half + series, count * F::log2_low)));
  const T special = x == T(0) ? -infinity<T>() : x == infinity<T>() ? x : not_a_number<T>();
  return x > T(0) && x < infinity<T>() ? result : special;
}

// log(1 + x) for 0 <= x <= 1 with the same series, of s = x / (2 + x) <= 1 / 3.
template <class T> FUNCTION T log_one_plus(T x) {
  const T s = x / (x + T(2)), z = s * s;
  T series = T(2) / (2 * Format<T>::log_one_plus_terms + 1);
#pragma GCC unroll 16
  for (int i = Format<T>::log_one_plus_terms - 1; i > 0; --i)
    series = multiply_add(series, z, T(2) / (2 * i + 1));
  return multiply_add(s * z, series, T(2) * s);
}

FUNCTION double error_function(double x) { return std::erf(x); }

// erf(x) / x - 1 by a polynomial of x^2 below 0.92, -log(erfc(x)) by a polynomial of x above: both
// fitted by minimax on 2000 Chebyshev nodes, with relative errors of erf of 4e-10 and 2e-9.
FUNCTION float error_function(float x) {
  constexpr float near[] = {0x1.06eba8p-3f,  -0x1.812744p-2f,  0x1.ce2e24p-4f, -0x1.b810eap-6f,
                            0x1.54df1ep-8f, -0x1.ab1084p-11f, 0x1.5f95b0p-14f};
  constexpr float far[] = {0x1.9a5c2ep-13f, 0x1.20af5ap+0f, 0x1.463cc0p-1f, 0x1.a9b42ep-4f, -0x1.6c2a78p-6f, 0x1.8ee174p-9f, -0x1.9ae90ap-13f};
  const float magnitude = absolute(x), t = magnitude > 4.0f ? 4.0f : magnitude, z = t * t;
  float p = near[6], q = far[6];
#pragma GCC unroll 8
  for (int i = 5; i >= 0; --i) p = multiply_add(p, z, near[i]), q = multiply_add(q, t, far[i]);
  const float result = t < 0.92f ? multiply_add(t, p, t) : 1.0f - exp_of_opposite(q);
  return copy_sign(result, x);
}

// Half precision by the bits: what has no vector instruction everywhere.
FUNCTION float from_half(uint16_t x) {
  const float magnitude = bits<float>(uint32_t(x & 0x7fff) << 13) * 0x1p112f;
  const uint32_t special = magnitude >= 65536.0f ? 0x7f800000u : 0u;
  return bits<float>(bits<uint32_t>(magnitude) | special | uint32_t(x & 0x8000) << 16);
}
FUNCTION uint16_t to_half(float x) {
  const uint32_t word = bits<uint32_t>(x), sign = word >> 16 & 0x8000, rest = word & 0x7fffffff;
  const float magnitude = bits<float>(rest);
  const uint32_t normal = (rest + 0xfff + (rest >> 13 & 1) - (112u << 23)) >> 13;
  const uint32_t subnormal = bits<uint32_t>(magnitude + 0.5f) - bits<uint32_t>(0.5f);
  uint32_t half = magnitude < 0x1p-14f ? subnormal : normal;
  half = magnitude >= 65520.0f ? 0x7c00u : half;
  half = magnitude != magnitude ? 0x7e00u : half;
  return uint16_t(half | sign);
}
