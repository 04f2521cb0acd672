// Products of small matrices, in tiles whose sums stay in registers.

#pragma once

#include "simd.h"

namespace regard {

#if REGARD_LANES == 16
constexpr int TILE_ROWS = 6, TILE_VECTORS = 4;  // 24 of 32 registers hold sums
#elif defined(__aarch64__)
constexpr int TILE_ROWS = 6, TILE_VECTORS = 4;
#else
constexpr int TILE_ROWS = 6, TILE_VECTORS = 2;  // 12 of 16
#endif
constexpr int PANEL = TILE_VECTORS * LANES;  // columns of a tile

// C[r][0..VECTORS * LANES) (+)= sum over k of A[r][k] B[k][0..VECTORS * LANES).
//
// A has strides (a_row, a_step), B and C rows of b_row and c_row floats.
template <int ROWS, int VECTORS, bool ADD>
inline void multiply_tile(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_row, float* c,
                          int64_t c_row, int64_t steps) {
    Floats sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = Floats{};
    for (int64_t k = 0; k < steps; k++) {
        Floats columns[VECTORS];
        for (int v = 0; v < VECTORS; v++) columns[v] = load(b + v * LANES);
        for (int r = 0; r < ROWS; r++) {
            Floats factor = broadcast(a[r * a_row]);
            for (int v = 0; v < VECTORS; v++) sums[r][v] += factor * columns[v];
        }
        a += a_step;
        b += b_row;
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) {
            float* to = c + r * c_row + v * LANES;
            store(to, ADD ? load(to) + sums[r][v] : sums[r][v]);  // added last, so that errors stay those of short sums
        }
}

// The same for any number of rows.
template <int VECTORS, bool ADD>
inline void multiply_rows(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_row, float* c,
                          int64_t c_row, int64_t rows, int64_t steps) {
    int64_t r = 0;
    for (; r + TILE_ROWS <= rows; r += TILE_ROWS)
        multiply_tile<TILE_ROWS, VECTORS, ADD>(a + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row, steps);
    a += r * a_row;
    c += r * c_row;
    switch (rows - r) {
        case 5: return multiply_tile<5, VECTORS, ADD>(a, a_row, a_step, b, b_row, c, c_row, steps);
        case 4: return multiply_tile<4, VECTORS, ADD>(a, a_row, a_step, b, b_row, c, c_row, steps);
        case 3: return multiply_tile<3, VECTORS, ADD>(a, a_row, a_step, b, b_row, c, c_row, steps);
        case 2: return multiply_tile<2, VECTORS, ADD>(a, a_row, a_step, b, b_row, c, c_row, steps);
        case 1: return multiply_tile<1, VECTORS, ADD>(a, a_row, a_step, b, b_row, c, c_row, steps);
    }
}

// The same for up to PANEL columns, in whole vectors.
template <bool ADD>
inline void multiply_panel(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_row, float* c,
                           int64_t c_row, int64_t rows, int64_t steps, int64_t columns = PANEL) {
    switch ((columns + LANES - 1) / LANES) {
        case 1: return multiply_rows<1, ADD>(a, a_row, a_step, b, b_row, c, c_row, rows, steps);
#if REGARD_LANES == 16 || defined(__aarch64__)
        case 2: return multiply_rows<2, ADD>(a, a_row, a_step, b, b_row, c, c_row, rows, steps);
        case 3: return multiply_rows<3, ADD>(a, a_row, a_step, b, b_row, c, c_row, rows, steps);
#endif
        default: return multiply_rows<TILE_VECTORS, ADD>(a, a_row, a_step, b, b_row, c, c_row, rows, steps);
    }
}

}  // namespace regard
