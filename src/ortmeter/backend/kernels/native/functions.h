// Functions of expressions, in C++ and in CUDA. NaN goes through all of them.

template <class T> FUNCTION T minimum(T a, T b) { return (b < a) | (b != b) ? b : a; }
template <class T> FUNCTION T maximum(T a, T b) { return (b > a) | (b != b) ? b : a; }
template <class T> FUNCTION T clip(T x, T low, T high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}
template <class T> FUNCTION T sign(T x) { return x != x ? x : T((x > T(0)) - (x < T(0))); }
template <class T> FUNCTION T relu(T x) { return x < T(0) ? T(0) : x; }
template <class T> FUNCTION T leaky_relu(T x, T alpha) { return x < T(0) ? alpha * x : x; }
template <class T> FUNCTION T elu(T x, T alpha) {
  return x < T(0) ? alpha * exp_minus_one(x) : x;
}
template <class T> FUNCTION T celu(T x, T alpha) {
  return x < T(0) ? alpha * exp_minus_one(x / alpha) : x;
}
template <class T> FUNCTION T selu(T x, T alpha, T gamma) { return gamma * elu(x, alpha); }
template <class T> FUNCTION T thresholded_relu(T x, T alpha) {
  return (x > alpha) | (x != x) ? x : T(0);
}
template <class T> FUNCTION T hard_sigmoid(T x, T alpha, T beta) {
  return clip(alpha * x + beta, T(0), T(1));
}
template <class T> FUNCTION T hard_swish(T x) { return x * hard_sigmoid(x, T(1) / T(6), T(0.5)); }
template <class T> FUNCTION T softplus(T x) {
  return (x < T(0) ? T(0) : x) + log_one_plus(exp_of_opposite(absolute(x)));
}
template <class T> FUNCTION T softsign(T x) { return x / (T(1) + absolute(x)); }
template <class T> FUNCTION T sigmoid(T x) {  // right to the last digits on both sides of 0
  const T e = exp_of_opposite(absolute(x));
  return (x < T(0) ? e : T(1)) / (T(1) + e);
}
template <class T> FUNCTION T swish(T x, T alpha) { return x * sigmoid(alpha * x); }
template <class T> FUNCTION T gelu(T x) {
  return T(0.5) * x * (T(1) + error_function(x * T(0.70710678118654752440)));
}
template <class T> FUNCTION T gelu_tanh(T x) {  // (1 + tanh(u)) / 2 = sigmoid(2 u)
  return x * sigmoid(x * (T(1.5957691216057307118) + T(0.071354816272600247) * (x * x)));
}
template <class T> FUNCTION T mish(T x) { return x * hyperbolic_tangent(softplus(x)); }
