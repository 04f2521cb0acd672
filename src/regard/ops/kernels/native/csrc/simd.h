// Vectors of floats as GCC's and Clang's extension has them: one source for every instruction set.

#pragma once

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>
#include <utility>

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

inline void store(float* to, Floats vector) {
    std::memcpy(to, &vector, sizeof vector);
}

inline Floats broadcast(float value) {
    return value - Floats{};
}

inline Floats larger(Floats a, Floats b) {
    return a > b ? a : b;
}

// Round numbers to bfloat16, to the nearest and to even; two in a float.
inline void to_pairs(const float* from, int64_t count, float* to) {
#if defined(__AVX512BF16__)
    for (int64_t j = 0; j < count; j += 2 * LANES) {
        const __m512bh pairs = _mm512_cvtne2ps_pbh((__m512)load(from + j + LANES), (__m512)load(from + j));
        std::memcpy(to + j / 2, &pairs, sizeof pairs);
    }
#else
    (void)from, (void)count, (void)to;  // not called
#endif
}

// Half and half, so that the steps do not wait for each other.
inline float sum_of(Floats vector) {
    float lanes[LANES];
    store(lanes, vector);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
    return lanes[0];
}

inline float largest_of(Floats vector) {
    float lanes[LANES];
    store(lanes, vector);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            lanes[lane] = lanes[lane] > lanes[lane + half] ? lanes[lane] : lanes[lane + half];
    return lanes[0];
}

// Exchange the lanes j and j + HALF of two vectors where j has no bit HALF: a step of a transposition.
template <int HALF, bool LATER, int... LANE>
inline Floats exchange(Floats a, Floats b, std::integer_sequence<int, LANE...>) {
    return LATER ? __builtin_shufflevector(a, b, (LANE & HALF ? LANES + LANE : LANE + HALF)...)
                 : __builtin_shufflevector(a, b, (LANE & HALF ? LANES + LANE - HALF : LANE)...);
}

template <int HALF>
inline void exchange_rows(Floats* rows) {
    constexpr auto lanes = std::make_integer_sequence<int, LANES>();
    for (int i = 0; i < LANES; i++) {
        if (i & HALF) continue;
        const Floats a = rows[i], b = rows[i + HALF];
        rows[i] = exchange<HALF, false>(a, b, lanes);
        rows[i + HALF] = exchange<HALF, true>(a, b, lanes);
    }
}

// Transpose a square of LANES vectors.
inline void transpose(Floats* rows) {
#if REGARD_LANES == 16
    exchange_rows<8>(rows);
#endif
#if REGARD_LANES >= 8
    exchange_rows<4>(rows);
#endif
    exchange_rows<2>(rows);
    exchange_rows<1>(rows);
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
    bits += (Bits) __builtin_convertvector(n, Ints) << 23;
    Floats result;
    std::memcpy(&result, &bits, sizeof result);
    return x < -87.3f ? Floats{} : result;  // NaN stays NaN
}

// tanh(x); the relative error is at most 3 units in the last place.
//
// Below 0.625 a polynomial (Cephes' tanhf, Moshier 1992), above it 1 - 2 / (exp(2 |x|) + 1) with the sign of x.
inline Floats tanh(Floats x) {
    const Floats size = x < 0.0f ? -x : x, square = x * x;
    Floats poly = broadcast(-5.70498872745e-3f);
    poly = poly * square + 2.06390887954e-2f;
    poly = poly * square - 5.37397155531e-2f;
    poly = poly * square + 1.33314422036e-1f;
    poly = poly * square - 3.33332819422e-1f;
    poly = poly * square * x + x;
    const Floats capped = size > 40.0f ? broadcast(40.0f) : size;  // NaN stays NaN
    const Floats large = 1.0f - 2.0f / (exp(2.0f * capped) + 1.0f);
    return size < 0.625f ? poly : x < 0.0f ? -large : large;
}

}  // namespace regard
