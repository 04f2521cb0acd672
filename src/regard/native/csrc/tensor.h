// Memory, and rows of tensors in any floating-point type.

#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "call.h"

namespace regard {

inline int64_t round_up(int64_t number, int64_t unit) {
    return (number + unit - 1) / unit * unit;
}

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

using FloatArray = std::unique_ptr<float[], Free>;

inline FloatArray allocate(int64_t floats) {
    void* memory = std::aligned_alloc(64, round_up(4 * std::max<int64_t>(floats, 1), 64));
    if (memory == nullptr) throw std::bad_alloc();
    return FloatArray(static_cast<float*>(memory));
}

#if defined(__aarch64__)
using Half = __fp16;  // GCC 12 lacks _Float16 there
#else
using Half = _Float16;
#endif

inline float to_float(float value) {
    return value;
}
inline float to_float(uint16_t bits) {  // bfloat16
    uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}
inline float to_float(Half value) {
    return static_cast<float>(value);
}

inline void from_float(float value, float& to) {
    to = value;
}
inline void from_float(float value, uint16_t& to) {  // to the nearest, and to even; NaN stays NaN
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    to = value != value ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline void from_float(float value, Half& to) {
    to = static_cast<Half>(value);
}

// Whether rows can be multiplied where they are, as panels of their columns.
inline bool has_whole_vectors(const Strided& tensor, int64_t columns, int64_t lanes) {
    return tensor.data && tensor.dtype == FLOAT32 && tensor.column == 1 && columns % lanes == 0;
}

inline int64_t offset_of(const Strided& tensor, int64_t b, int64_t h, int64_t i) {
    return b * tensor.batch + h * tensor.head + i * tensor.row;
}

template <typename T>
const T* at(const Strided& tensor, int64_t b, int64_t h, int64_t i) {
    return static_cast<const T*>(tensor.data) + offset_of(tensor, b, h, i);
}

// Call a function with a null pointer to the type of a tensor's elements.
template <typename Function>
void with_dtype(Dtype dtype, Function function) {
    switch (dtype) {
        case FLOAT32:
            return function(static_cast<float*>(nullptr));
        case BFLOAT16:
            return function(static_cast<uint16_t*>(nullptr));
        case FLOAT16:
            return function(static_cast<Half*>(nullptr));
    }
}

template <typename T>
void read_row(const Strided& tensor, int64_t b, int64_t h, int64_t i, int64_t count, float* to) {
    const T* from = at<T>(tensor, b, h, i);
    if (tensor.column == 1)
        for (int64_t f = 0; f < count; f++) to[f] = to_float(from[f]);
    else if (tensor.column == 0)  // as the gradient of a sum
        std::fill_n(to, count, to_float(*from));
    else
        for (int64_t f = 0; f < count; f++) to[f] = to_float(from[f * tensor.column]);
}

template <typename T>
void write_row(const float* from, int64_t count, float factor, T* to, int64_t column) {
    if (column == 1)
        for (int64_t f = 0; f < count; f++) from_float(from[f] * factor, to[f]);
    else
        for (int64_t f = 0; f < count; f++) from_float(from[f] * factor, to[f * column]);
}

// Rows start to stop of a head as rows of `width` floats, times a factor; the rest of each row is 0.
inline void read_rows(const Strided& tensor, int64_t b, int64_t h, int64_t start, int64_t stop, int64_t count,
                      float* to, int64_t width, float factor = 1) {
    with_dtype(tensor.dtype, [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        for (int64_t i = start; i < stop; i++, to += width) {
            read_row<T>(tensor, b, h, i, count, to);
            if (factor != 1)
                for (int64_t f = 0; f < count; f++) to[f] *= factor;
            for (int64_t f = count; f < width; f++) to[f] = 0;
        }
    });
}

// Rows of a tensor of bfloat16 as it is, two features in a float; an odd one is followed by 0.
inline void read_bf16_pairs(const Strided& tensor, int64_t b, int64_t h, int64_t start, int64_t stop, int64_t count,
                            float* to, int64_t width) {
    for (int64_t i = start; i < stop; i++, to += width) {
        const uint16_t* from = at<uint16_t>(tensor, b, h, i);
        char* bytes = reinterpret_cast<char*>(to);
        if (count % 2) to[width - 1] = 0;
        if (tensor.column == 1)
            std::memcpy(bytes, from, 2 * count);
        else
            for (int64_t f = 0; f < count; f++) std::memcpy(bytes + 2 * f, from + f * tensor.column, 2);
    }
}

}  // namespace regard
