// Products of matrices of bfloat16 in the tiles of Intel's AMX.
//
// REGARD_EMULATE_AMX replaces the instructions by loops, so that the rest can be tested on other processors.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__AMX_BF16__)
#include <immintrin.h>
#endif

namespace regard {

#if defined(__AMX_BF16__) || defined(REGARD_EMULATE_AMX)
constexpr bool HAS_AMX = true;
#else
constexpr bool HAS_AMX = false;
#endif

constexpr int64_t AMX_ROWS = 16, AMX_FLOATS = 16;  // of a tile

#if defined(REGARD_EMULATE_AMX)
inline thread_local float amx_tiles[8][AMX_ROWS][AMX_FLOATS];

inline void amx_load(int tile, const float* from, int64_t stride) {
    for (int64_t r = 0; r < AMX_ROWS; r++) std::memcpy(amx_tiles[tile][r], from + r * stride, 4 * AMX_FLOATS);
}

inline void amx_store(int tile, float* to, int64_t stride) {
    for (int64_t r = 0; r < AMX_ROWS; r++) std::memcpy(to + r * stride, amx_tiles[tile][r], 4 * AMX_FLOATS);
}

inline float amx_half(float pair, int which) {
    uint32_t bits;
    std::memcpy(&bits, &pair, 4);
    bits = which ? bits & 0xffff0000 : bits << 16;
    std::memcpy(&pair, &bits, 4);
    return pair;
}

inline void amx_multiply(int c, int a, int b) {
    for (int64_t r = 0; r < AMX_ROWS; r++)
        for (int64_t k = 0; k < AMX_FLOATS; k++)
            for (int64_t j = 0; j < AMX_FLOATS; j++)
                for (int half = 0; half < 2; half++)
                    amx_tiles[c][r][j] += amx_half(amx_tiles[a][r][k], half) * amx_half(amx_tiles[b][k][j], half);
}

#define AMX_ZERO(tile) std::memset(amx_tiles[tile], 0, sizeof amx_tiles[tile])
#define AMX_LOAD(tile, from, stride) amx_load(tile, from, stride)
#define AMX_STORE(tile, to, stride) amx_store(tile, to, stride)
#define AMX_MULTIPLY(c, a, b) amx_multiply(c, a, b)
#elif defined(__AMX_BF16__)
#define AMX_ZERO(tile) _tile_zero(tile)
#define AMX_LOAD(tile, from, stride) _tile_loadd(tile, from, 4 * (stride))
#define AMX_STORE(tile, to, stride) _tile_stored(tile, to, 4 * (stride))
#define AMX_MULTIPLY(c, a, b) _tile_dpbf16ps(c, a, b)
#endif

// The tiles' shape, for the thread that has this; without it they have none.
class AmxTiles {
  public:
    AmxTiles() {
#if defined(__AMX_BF16__)
        struct {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } config;
        _tile_loadconfig(&config);
#endif
    }
    ~AmxTiles() {
#if defined(__AMX_BF16__)
        _tile_release();
#endif
    }
    AmxTiles(const AmxTiles&) = delete;
};

// C (+)= A B, where a float of A and B is a pair of bfloat16, and strides are in floats.
//
// Whole tiles are read and written: A and C have rows to the next multiple of 16, B and C so many columns, and `steps`
// is a multiple of 16.
inline void multiply_amx(const float* a, int64_t a_row, const float* b, int64_t b_row, float* c, int64_t c_row,
                         int64_t rows, int64_t steps, int64_t columns, bool adds) {
#if defined(__AMX_BF16__) || defined(REGARD_EMULATE_AMX)
    __asm__ volatile("" ::: "memory");  // the instructions do not tell the compiler what they read and write
    for (int64_t r = 0; r < rows; r += 2 * AMX_ROWS) {
        const bool is_tall = rows - r > AMX_ROWS;
        const float *upper = a + r * a_row, *lower = upper + AMX_ROWS * a_row;
        for (int64_t j = 0; j < columns; j += 2 * AMX_FLOATS) {
            const bool is_wide = columns - j > AMX_FLOATS;
            float *to = c + r * c_row + j, *below = to + AMX_ROWS * c_row;
            if (adds) {
                AMX_LOAD(0, to, c_row);
                if (is_wide) AMX_LOAD(1, to + AMX_FLOATS, c_row);
                if (is_tall) AMX_LOAD(2, below, c_row);
                if (is_tall && is_wide) AMX_LOAD(3, below + AMX_FLOATS, c_row);
            } else {
                AMX_ZERO(0);
                AMX_ZERO(1);
                AMX_ZERO(2);
                AMX_ZERO(3);
            }
            for (int64_t k = 0; k < steps; k += AMX_FLOATS) {
                const float* left = b + k * b_row + j;
                AMX_LOAD(4, upper + k, a_row);
                AMX_LOAD(6, left, b_row);
                AMX_MULTIPLY(0, 4, 6);
                if (is_wide) {
                    AMX_LOAD(7, left + AMX_FLOATS, b_row);
                    AMX_MULTIPLY(1, 4, 7);
                }
                if (is_tall) {
                    AMX_LOAD(5, lower + k, a_row);
                    AMX_MULTIPLY(2, 5, 6);
                    if (is_wide) AMX_MULTIPLY(3, 5, 7);
                }
            }
            AMX_STORE(0, to, c_row);
            if (is_wide) AMX_STORE(1, to + AMX_FLOATS, c_row);
            if (is_tall) AMX_STORE(2, below, c_row);
            if (is_tall && is_wide) AMX_STORE(3, below + AMX_FLOATS, c_row);
        }
    }
    __asm__ volatile("" ::: "memory");
#else
    (void)a, (void)a_row, (void)b, (void)b_row, (void)c, (void)c_row, (void)rows, (void)steps, (void)columns,
        (void)adds;
#endif
}

}  // namespace regard
