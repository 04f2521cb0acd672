// Vectors of floats as GCC's and Clang's extension has them: one source for every instruction set.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define REGARD_LANES 16
#elif defined(__AVX__)
#define REGARD_LANES 8
#else
#define REGARD_LANES 4  // SSE2, NEON
#endif

namespace regard {

constexpr int LANES = REGARD_LANES;

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));

inline Floats load(const float* from) {
    Floats vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

inline void store(float* to, Floats vector) { std::memcpy(to, &vector, sizeof vector); }

inline Floats broadcast(float value) { return value - Floats{}; }

inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

inline float sum_of(Floats vector) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += vector[lane];
    return sum;
}

inline float largest_of(Floats vector) {
    float largest = vector[0];
    for (int lane = 1; lane < LANES; lane++) largest = vector[lane] > largest ? vector[lane] : largest;
    return largest;
}

// exp(x) for x <= 88, 0 below -87.3; the relative error is at most 2 units in the last place.
//
// With x = n log 2 + r, |r| <= log(2) / 2: exp(x) = 2^n exp(r), exp(r) by a polynomial of degree 6 (Cephes' expf,
// Moshier 1992), 2^n by adding n to the exponent.
inline Floats exp(Floats x) {
    const Floats round = broadcast(12582912.0f);  // 1.5 * 2^23: adding it leaves no room for a fraction
    Floats n = (x * 1.44269504f + round) - round;
    Floats r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Floats poly = broadcast(1.9875691500e-4f);
    poly = poly * r + 1.3981999507e-3f;
    poly = poly * r + 8.3334519073e-3f;
    poly = poly * r + 4.1665795894e-2f;
    poly = poly * r + 1.6666665459e-1f;
    poly = poly * r + 5.0000001201e-1f;
    poly = poly * (r * r) + r + 1.0f;
    Bits bits;  // unsigned, because the sum overflows where the result is 0
    std::memcpy(&bits, &poly, sizeof bits);
    bits += (Bits)__builtin_convertvector(n, Ints) << 23;
    Floats result;
    std::memcpy(&result, &bits, sizeof result);
    return x < -87.3f ? Floats{} : result;  // NaN stays NaN
}

}  // namespace regard
