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

// A vector of bfloat16.
typedef uint16_t Narrow __attribute__((vector_size(2 * LANES)));

inline Floats load_floats(const float* from) {
    return load(from);
}

inline Floats load_floats(const uint16_t* from) {
    Narrow narrow;
    std::memcpy(&narrow, from, sizeof narrow);
    const Bits bits = __builtin_convertvector(narrow, Bits) << 16;
    Floats vector;
    std::memcpy(&vector, &bits, sizeof vector);
    return vector;
}

inline void store_floats(float* to, Floats vector) {
    store(to, vector);
}

inline void store_floats(uint16_t* to, Floats vector) {  // to the nearest, and to even; NaN stays NaN
    Bits bits;
    std::memcpy(&bits, &vector, sizeof bits);
    const Bits rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const Narrow narrow = __builtin_convertvector(vector == vector ? rounded : Bits{} + 0x7fc0, Narrow);
    std::memcpy(to, &narrow, sizeof narrow);
}

inline Floats broadcast(float value) {
    return value - Floats{};
}

inline Floats larger(Floats a, Floats b) {
    return a > b ? a : b;
}

inline Floats absolute(Floats a) {
    return a < 0.0f ? -a : a;
}

// Lane l of `a` where bit l is set, else of `b`.
inline Floats select(uint64_t bits, Floats a, Floats b) {
    Ints lane;
    for (int l = 0; l < LANES; l++) lane[l] = 1 << l;
    return (static_cast<int32_t>(bits) & lane) != 0 ? a : b;
}

// Round two vectors to bfloat16, to the nearest and to even; two numbers in a float.
inline void store_bf16_pairs(float* to, Floats first, Floats second) {
#if defined(__AVX512BF16__)
    const __m512bh pairs = _mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    std::memcpy(to, &pairs, sizeof pairs);
#else
    (void)to, (void)first, (void)second;  // not called
#endif
}

inline void to_bf16_pairs(const float* from, int64_t count, float* to) {
    for (int64_t j = 0; j < count; j += 2 * LANES) store_bf16_pairs(to + j / 2, load(from + j), load(from + j + LANES));
}

// Each lane l of a vector becomes lane l ^ DISTANCE.
template <int DISTANCE, int... LANE>
inline Floats swap_lanes(Floats vector, std::integer_sequence<int, LANE...>) {
    return __builtin_shufflevector(vector, vector, (LANE ^ DISTANCE)...);
}

// All lanes, combined half and half: the steps do not wait for each other, and stay in registers.
template <typename Function>
inline float reduce(Floats vector, Function combine) {
    constexpr auto lanes = std::make_integer_sequence<int, LANES>();
#if REGARD_LANES == 16
    vector = combine(vector, swap_lanes<8>(vector, lanes));
#endif
#if REGARD_LANES >= 8
    vector = combine(vector, swap_lanes<4>(vector, lanes));
#endif
    vector = combine(vector, swap_lanes<2>(vector, lanes));
    return combine(vector, swap_lanes<1>(vector, lanes))[0];
}

inline float sum_of(Floats vector) {
    return reduce(vector, [](Floats a, Floats b) { return a + b; });
}

inline float largest_of(Floats vector) {
    return reduce(vector, larger);
}

// The product of two vectors.
inline float product_of(const float* a, const float* b, int64_t count) {
    Floats sums = broadcast(0.0f);
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) sums += load(a + i) * load(b + i);
    float sum = sum_of(sums);
    for (; i < count; i++) sum += a[i] * b[i];
    return sum;
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

// exp(x) for -87.3 <= x <= 88, 0 below, any number for NaN; the relative error is at most 4e-7, and 2e-7 above -10.
//
// With x = n log 2 + r, |r| <= log(2) / 2: exp(x) = 2^n exp(r). The polynomial for exp(r) has the smallest largest
// relative error, 9e-8, of those of degree 5 that are 1 at 0; 2^n is added to the exponent.
inline Floats exp(Floats x) {
    const Floats round =
        broadcast(12582912.0f);  // 1.5 * 2^23: the sum has no room for a fraction, and n in its low bits
    const Floats sum = x * 1.44269504f + round, r = x - (sum - round) * 0.693147181f;
    Floats poly = broadcast(8.290272206e-3f);
    poly = poly * r + 4.189816117e-2f;
    poly = poly * r + 1.666763872e-1f;
    poly = poly * r + 4.999914765e-1f;
    poly = poly * r + 9.999997020e-1f;
    poly = poly * r + 1.0f;
    Bits bits, n;
    std::memcpy(&bits, &poly, sizeof bits);
    std::memcpy(&n, &sum, sizeof n);
    bits += n << 23;
    Floats result;
    std::memcpy(&result, &bits, sizeof result);
    return x < -87.3f ? Floats{} : result;
}

// tanh(x); the relative error is at most 3 units in the last place.
//
// Below 0.625 a polynomial (Cephes' tanhf, Moshier 1992), above it 1 - 2 / (exp(2 |x|) + 1) with the sign of x.
inline Floats tanh(Floats x) {
    const Floats size = absolute(x), square = x * x;
    Floats poly = broadcast(-5.70498872745e-3f);
    poly = poly * square + 2.06390887954e-2f;
    poly = poly * square - 5.37397155531e-2f;
    poly = poly * square + 1.33314422036e-1f;
    poly = poly * square - 3.33332819422e-1f;
    poly = poly * square * x + x;
    const Floats capped = size > 40.0f ? broadcast(40.0f) : size;
    const Floats large = 1.0f - 2.0f / (exp(2.0f * capped) + 1.0f);
    return size >= 0.625f ? (x < 0.0f ? -large : large) : poly;  // NaN stays NaN
}

}  // namespace regard
