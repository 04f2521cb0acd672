// GELU as GPT-2 approximates it, x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), and its gradient.
//
// (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)): an exponential and a division, instead of a tanh.

#include "call.h"
#include "simd.h"
#include "tensor.h"

namespace regard {
namespace {

constexpr float TWICE_ROOT = 1.595769122f, CUBE = 0.044715f;  // 2 sqrt(2 / pi)

inline Floats sigmoid_of_2u(Floats x) {
    const Floats minus_2u = x * (x * x * (-TWICE_ROOT * CUBE) - TWICE_ROOT);
    return minus_2u > 87.0f ? Floats{} : 1.0f / (1.0f + exp(minus_2u));
}

inline Floats gelu(Floats x) {
    return x * sigmoid_of_2u(x);
}

inline Floats gelu_gradient(Floats x, Floats gradient) {
    const Floats share = sigmoid_of_2u(x), slope = x * x * (3 * TWICE_ROOT * CUBE) + TWICE_ROOT;  // of 2 u
    const Floats curve = share * (1.0f - share);  // is 0 far from 0, where x^3 overflows
    return gradient * (share + (curve == 0.0f ? Floats{} : curve * x * slope));
}

template <typename T>
void run_tasks(const GeluCall& call, int64_t first, int64_t last) {
    const T *x = static_cast<const T*>(call.x), *gradient = static_cast<const T*>(call.gradient);
    T* y = static_cast<T*>(call.y);
    int64_t i = first * GELU_ELEMENTS;
    const int64_t stop = std::min(last * GELU_ELEMENTS, call.count);
    if (gradient == nullptr)
        for (; i + LANES <= stop; i += LANES) store_floats(y + i, gelu(load_floats(x + i)));
    else
        for (; i + LANES <= stop; i += LANES)
            store_floats(y + i, gelu_gradient(load_floats(x + i), load_floats(gradient + i)));
    if (i == stop) return;
    T rest[LANES] = {}, rest_gradient[LANES] = {}, result[LANES];
    std::copy(x + i, x + stop, rest);
    if (gradient != nullptr) std::copy(gradient + i, gradient + stop, rest_gradient);
    const Floats vector = load_floats(rest);
    store_floats(result, gradient == nullptr ? gelu(vector) : gelu_gradient(vector, load_floats(rest_gradient)));
    std::copy(result, result + (stop - i), y + i);
}

}  // namespace
}  // namespace regard

// Tasks from first to last, of GELU_ELEMENTS each. Returns 0.
extern "C" int regard_gelu_tasks(const regard::GeluCall* call, int64_t first, int64_t last) {
    using namespace regard;
    call->dtype == FLOAT32 ? run_tasks<float>(*call, first, last) : run_tasks<uint16_t>(*call, first, last);
    return 0;
}
