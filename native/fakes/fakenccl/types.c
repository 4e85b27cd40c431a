/* Elements of every type: what they are worth, and what several of them become. */
#include <math.h>
#include <string.h>

#include "fakes/fakenccl/fakenccl.h"

static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

size_t fake_size(int type)
{
    return sizes[type];
}

bool fake_has_type(int type)
{
    long version = fake.version;
    return type >= 0 && (type <= ncclFloat64 || (type == ncclBfloat16 && version >= 21000) ||
                         (type <= ncclFloat8e5m2 && version >= 22400));
}

static bool is_integer(int type)
{
    return type <= ncclUint64;
}

/* ---- small floats: a sign, so many bits of exponent and of fraction */
struct format {
    int exponent, fraction;
    bool infinite; /* the largest exponent is for infinities and NaN; else only all ones is NaN */
};

static struct format format_of(int type)
{
    switch (type) {
    case ncclFloat16:
        return (struct format){5, 10, true};
    case ncclBfloat16:
        return (struct format){8, 7, true};
    case ncclFloat8e5m2:
        return (struct format){5, 2, true};
    default:
        return (struct format){4, 3, false};
    }
}

static double decode(unsigned bits, struct format f)
{
    int most = (1 << f.exponent) - 1, bias = most >> 1;
    int exponent = (int)(bits >> f.fraction) & most;
    unsigned fraction = bits & ((1u << f.fraction) - 1);
    double sign = bits >> (f.exponent + f.fraction) & 1 ? -1 : 1;
    if (exponent == most && f.infinite)
        return fraction ? NAN : sign * INFINITY;
    if (exponent == most && fraction == (1u << f.fraction) - 1)
        return NAN;
    if (!exponent)
        return sign * ldexp(fraction, 1 - bias - f.fraction);
    return sign * ldexp(fraction | 1u << f.fraction, exponent - bias - f.fraction);
}

/* To the nearest, ties to even; what is too large becomes the largest there is. */
static unsigned encode(double value, struct format f)
{
    int most = (1 << f.exponent) - 1, bias = most >> 1, exponent;
    unsigned sign = signbit(value) ? 1u << (f.exponent + f.fraction) : 0;
    unsigned nan = (unsigned)most << f.fraction | ((1u << f.fraction) - 1);
    unsigned top = f.infinite ? (unsigned)most << f.fraction : nan - 1;
    value = fabs(value);
    if (isnan(value))
        return sign | nan;
    if (value == 0)
        return sign;
    frexp(value, &exponent);
    int scale = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1; /* of the leading one */
    double steps = nearbyint(ldexp(value, f.fraction - scale));
    if (isinf(value) || steps >= ldexp(1, 30))
        return sign | top;
    unsigned whole = (unsigned)steps;
    /* A subnormal, or one that was rounded up to the next power of two, carries into the exponent
     * by itself. */
    unsigned found = whole + ((unsigned)(scale + bias - 1) << f.fraction);
    return sign | (found > top ? top : found);
}

double fake_element(const void *data, size_t index, int type)
{
    const char *at = (const char *)data + index * fake_size(type);
    uint16_t half = 0;
    float single;
    double wide;
    switch (type) {
    case ncclFloat32:
        memcpy(&single, at, sizeof(single));
        return single;
    case ncclFloat64:
        memcpy(&wide, at, sizeof(wide));
        return wide;
    default:
        memcpy(&half, at, fake_size(type));
        return decode(half, format_of(type));
    }
}

static void put_element(void *data, size_t index, int type, double value)
{
    char *at = (char *)data + index * fake_size(type);
    float single = (float)value;
    if (type == ncclFloat32) {
        memcpy(at, &single, sizeof(single));
    } else if (type == ncclFloat64) {
        memcpy(at, &value, sizeof(value));
    } else {
        uint16_t half = (uint16_t)encode(value, format_of(type));
        memcpy(at, &half, fake_size(type));
    }
}

/* ---- whole numbers, which wrap around */
static uint64_t whole(const void *data, size_t index, int type)
{
    size_t size = fake_size(type);
    uint64_t bits = 0;
    memcpy(&bits, (const char *)data + index * size, size);
    bool is_signed = type == ncclInt8 || type == ncclInt32 || type == ncclInt64;
    if (is_signed && size < 8 && bits >> (size * 8 - 1))
        bits |= ~0ull << (size * 8);
    return bits;
}

static uint64_t join_whole(uint64_t a, uint64_t b, int type, int kind)
{
    bool is_signed = type == ncclInt8 || type == ncclInt32 || type == ncclInt64;
    bool less = is_signed ? (int64_t)a < (int64_t)b : a < b;
    switch (kind) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return less ? b : a;
    case ncclMin:
        return less ? a : b;
    default:
        return a + b;
    }
}

static double join(double a, double b, int kind)
{
    switch (kind) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return fmax(a, b);
    case ncclMin:
        return fmin(a, b);
    default:
        return a + b;
    }
}

void fake_scale(void *data, size_t count, int type, double factor)
{
    for (size_t i = 0; i < count; i++)
        put_element(data, i, type, fake_element(data, i, type) * factor);
}

static void reduce_whole(char *out, const char *all, size_t count, int ranks, int type, int kind)
{
    size_t size = fake_size(type);
    for (size_t i = 0; i < count; i++) {
        uint64_t value = whole(all, i, type);
        for (int rank = 1; rank < ranks; rank++)
            value =
                join_whole(value, whole(all + (size_t)rank * count * size, i, type), type, kind);
        if (kind == ncclAvg)
            value = (uint64_t)((int64_t)value / ranks);
        memcpy(out + i * size, &value, size);
    }
}

void fake_reduce(void *out, const char *all, size_t count, int ranks, int type, int kind)
{
    size_t size = fake_size(type);
    if (is_integer(type)) {
        reduce_whole(out, all, count, ranks, type, kind);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        double value = fake_element(all, i, type);
        for (int rank = 1; rank < ranks; rank++)
            value = join(value, fake_element(all + (size_t)rank * count * size, i, type), kind);
        put_element(out, i, type, kind == ncclAvg ? value / ranks : value);
    }
}
