// Products of small matrices, in tiles whose sums stay in registers.

#pragma once

#include "amx.h"
#include "simd.h"

namespace regard {

#if REGARD_LANES == 16
constexpr int TILE_ROWS = 6, TILE_VECTORS = 4;  // 24 of 32 registers hold sums
#elif defined(__aarch64__)
constexpr int TILE_ROWS = 6, TILE_VECTORS = 4;
#else
constexpr int TILE_ROWS = 6, TILE_VECTORS = 2;  // 12 of 16
#endif
constexpr int PANEL = TILE_VECTORS * LANES;         // columns of a tile
constexpr int ROW_UNIT = HAS_AMX ? 48 : TILE_ROWS;  // of which a block of rows has a multiple
static_assert(ROW_UNIT % TILE_ROWS == 0 && (!HAS_AMX || (ROW_UNIT % AMX_ROWS == 0 && PANEL % AMX_FLOATS == 0)));

// Whether numbers in bfloat16 are multiplied as such: two in each float of A and B, which follow each other in the sum.
#if defined(__AVX512BF16__)
constexpr bool HAS_BF16 = true;
#else
constexpr bool HAS_BF16 = false;
#endif

template <bool BF16>
inline Floats multiply_add(Floats sum, Floats a, Floats b) {
#if defined(__AVX512BF16__)
    if constexpr (BF16) {
        __m512bh bf16_a, bf16_b;
        std::memcpy(&bf16_a, &a, sizeof a);
        std::memcpy(&bf16_b, &b, sizeof b);
        return (Floats)_mm512_dpbf16_ps((__m512)sum, bf16_a, bf16_b);
    }
#endif
    return sum + a * b;
}

// C[r][0..VECTORS * LANES) += (or = scale *) sum over k of A[r][k] B[k][0..VECTORS * LANES).
//
// A has strides (a_row, a_step), B and C rows of b_row and c_row floats.
template <int ROWS, int VECTORS, bool ADD, bool BF16>
inline void multiply_tile(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_row, float* c,
                          int64_t c_row, int64_t steps, float scale) {
    Floats sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = Floats{};
    for (int64_t k = 0; k < steps; k++) {
        Floats columns[VECTORS];
        for (int v = 0; v < VECTORS; v++) columns[v] = load(b + v * LANES);
        for (int r = 0; r < ROWS; r++) {
            Floats factor = broadcast(a[r * a_row]);
            for (int v = 0; v < VECTORS; v++) sums[r][v] = multiply_add<BF16>(sums[r][v], factor, columns[v]);
        }
        a += a_step;
        b += b_row;
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) {
            float* to = c + r * c_row + v * LANES;
            store(to, ADD ? load(to) + sums[r][v] : sums[r][v] * scale);  // added last: errors stay those of short sums
        }
}

// The same for any number of rows. Not inlined, so that the compiler's code for it does not depend on the caller's.
template <int VECTORS, bool ADD, bool BF16>
__attribute__((noinline)) void multiply_rows(const float* a, int64_t a_row, int64_t a_step, const float* b,
                                             int64_t b_row, float* c, int64_t c_row, int64_t rows, int64_t steps,
                                             float scale) {
    int64_t r = 0;
    for (; r + TILE_ROWS <= rows; r += TILE_ROWS)
        multiply_tile<TILE_ROWS, VECTORS, ADD, BF16>(a + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row,
                                                     steps, scale);
    a += r * a_row;
    c += r * c_row;
    switch (rows - r) {
        case 5:
            return multiply_tile<5, VECTORS, ADD, BF16>(a, a_row, a_step, b, b_row, c, c_row, steps, scale);
        case 4:
            return multiply_tile<4, VECTORS, ADD, BF16>(a, a_row, a_step, b, b_row, c, c_row, steps, scale);
        case 3:
            return multiply_tile<3, VECTORS, ADD, BF16>(a, a_row, a_step, b, b_row, c, c_row, steps, scale);
        case 2:
            return multiply_tile<2, VECTORS, ADD, BF16>(a, a_row, a_step, b, b_row, c, c_row, steps, scale);
        case 1:
            return multiply_tile<1, VECTORS, ADD, BF16>(a, a_row, a_step, b, b_row, c, c_row, steps, scale);
    }
}

// The same for up to PANEL columns, in whole vectors.
template <bool ADD, bool BF16 = false>
inline void multiply_panel(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_row, float* c,
                           int64_t c_row, int64_t rows, int64_t steps, int64_t columns = PANEL, float scale = 1) {
    switch ((columns + LANES - 1) / LANES) {
        case 1:
            return multiply_rows<1, ADD, BF16>(a, a_row, a_step, b, b_row, c, c_row, rows, steps, scale);
#if REGARD_LANES == 16 || defined(__aarch64__)
        case 2:
            return multiply_rows<2, ADD, BF16>(a, a_row, a_step, b, b_row, c, c_row, rows, steps, scale);
        case 3:
            return multiply_rows<3, ADD, BF16>(a, a_row, a_step, b, b_row, c, c_row, rows, steps, scale);
#endif
        default:
            return multiply_rows<TILE_VECTORS, ADD, BF16>(a, a_row, a_step, b, b_row, c, c_row, rows, steps, scale);
    }
}

}  // namespace regard
