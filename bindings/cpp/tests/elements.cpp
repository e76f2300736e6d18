// Every element type: sums, updaters and conversions against scalar loops.
#include "check.hpp"

#include <array>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <random>

namespace {

constexpr std::size_t count = 1009;  // odd, so that vector kernels have a rest

// The value of a binary16, by its definition.
float widened(kv::float16 half) {
    const int exponent = (half.bits >> 10) & 0x1f;
    const int fraction = half.bits & 0x3ff;
    const float sign = (half.bits & 0x8000) != 0 ? -1.0F : 1.0F;
    if (exponent == 0x1f) {
        return fraction == 0 ? sign * std::numeric_limits<float>::infinity()
                             : std::numeric_limits<float>::quiet_NaN();
    }
    return exponent == 0 ? sign * std::ldexp(static_cast<float>(fraction), -24)
                         : sign * std::ldexp(static_cast<float>(fraction + 0x400), exponent - 25);
}

float widened(kv::bfloat16 brain) {
    const std::uint32_t bits = static_cast<std::uint32_t>(brain.bits) << 16;
    float value = 0.0F;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// The nearest storage value, found by halving the range of the positive finite numbers; their
// bits are in the order of their values. Of two that are equally near, the even one.
template <class Storage>
Storage narrowed(float value, std::uint16_t infinity) {
    const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
    const double wanted = std::fabs(static_cast<double>(value));
    std::uint16_t low = 0;
    std::uint16_t high = infinity;
    while (high - low > 1) {
        const auto middle = static_cast<std::uint16_t>((low + high) / 2);
        (static_cast<double>(widened(Storage{middle})) <= wanted ? low : high) = middle;
    }
    const double under = widened(Storage{low});
    // The first number beyond the largest stands where the infinity is.
    const double over = high == infinity ? 2 * under - widened(Storage{static_cast<std::uint16_t>(
                                                            low - 1)})
                                         : widened(Storage{high});
    const bool up = wanted - under > over - wanted ||
                    (wanted - under == over - wanted && (low & 1) == 1);
    return Storage{static_cast<std::uint16_t>(sign | (up ? high : low))};
}

// How a type is made from a small number, and how two of them are added.
template <class Element>
struct arithmetic {
    static Element make(int number) {
        return static_cast<Element>(number) / static_cast<Element>(7);
    }
    static Element add(Element a, Element b) { return a + b; }
};

template <class Integer>
struct wrapping {
    using Unsigned = std::make_unsigned_t<Integer>;
    static Integer make(int number) {
        return static_cast<Integer>(static_cast<Unsigned>(number) * Unsigned{37});
    }
    static Integer add(Integer a, Integer b) {
        return static_cast<Integer>(
            static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
    }
};
template <> struct arithmetic<std::int8_t> : wrapping<std::int8_t> {};
template <> struct arithmetic<std::uint8_t> : wrapping<std::uint8_t> {};
template <> struct arithmetic<std::int16_t> : wrapping<std::int16_t> {};
template <> struct arithmetic<std::uint16_t> : wrapping<std::uint16_t> {};
template <> struct arithmetic<std::uint32_t> : wrapping<std::uint32_t> {};
template <> struct arithmetic<std::uint64_t> : wrapping<std::uint64_t> {};
template <> struct arithmetic<std::int32_t> : wrapping<std::int32_t> {};
template <> struct arithmetic<std::int64_t> : wrapping<std::int64_t> {};

template <> struct arithmetic<kv::float16> {
    static kv::float16 make(int number) {
        return narrowed<kv::float16>(static_cast<float>(number) / 7.0F, 0x7c00);
    }
};
template <> struct arithmetic<kv::bfloat16> {
    static kv::bfloat16 make(int number) {
        return narrowed<kv::bfloat16>(static_cast<float>(number) / 7.0F, 0x7f80);
    }
};

template <class Element>
std::vector<Element> numbers(unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Element> made(count);
    for (Element& element : made) {
        element = arithmetic<Element>::make(static_cast<int>(random() % 2000) - 1000);
    }
    return made;
}

// Left to right; the short floats in float, rounded once.
template <class Element>
Element sum(Element a, Element b, Element c) {
    return arithmetic<Element>::add(arithmetic<Element>::add(a, b), c);
}
kv::float16 sum(kv::float16 a, kv::float16 b, kv::float16 c) {
    return narrowed<kv::float16>(widened(a) + widened(b) + widened(c), 0x7c00);
}
kv::bfloat16 sum(kv::bfloat16 a, kv::bfloat16 b, kv::bfloat16 c) {
    return narrowed<kv::bfloat16>(widened(a) + widened(b) + widened(c), 0x7f80);
}

template <class Element>
bool same_bytes(const std::vector<Element>& a, const std::vector<Element>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(Element)) == 0;
}

template <class Element>
void sums_are_those_of_a_loop(const char* type) {
    const std::vector<Element> a = numbers<Element>(1);
    const std::vector<Element> b = numbers<Element>(2);
    const std::vector<Element> c = numbers<Element>(3);
    std::vector<Element> wanted(count);
    for (std::size_t i = 0; i < count; i++) {
        wanted[i] = sum(a[i], b[i], c[i]);
    }
    std::vector<Element> got(count);
    kv::Store store(type);
    store.init("w", kv::view(a));
    CHECK(store.key_info("w").dtype == kv::dtype_of<Element>::value);
    store.pull("w", kv::view(got));
    CHECK(same_bytes(got, a));
    store.push("w", kv::view(b));
    store.pull("w", kv::view(got));
    CHECK(same_bytes(got, b));
    store.push("w", {kv::view(a), kv::view(b), kv::view(c)});
    store.pull("w", kv::view(got));
    CHECK(same_bytes(got, wanted));
}

template <class Element>
void updaters_see_the_elements() {
    std::vector<Element> value = numbers<Element>(4);
    const std::vector<Element> pushed = numbers<Element>(5);
    kv::Store store("local");
    store.init(7, kv::view(value));
    store.set_updater([](kv::Key, const kv::ConstTensor& input, kv::Tensor& stored) {
        CHECK(input.size() == count && stored.size() == count);
        CHECK(stored.strides().size() == 0 && input.strides().size() == 0);
        // Backwards, so that nothing but the updater explains the result.
        std::reverse_copy(input.data<Element>(), input.data<Element>() + count,
                          stored.data<Element>());
    });
    store.push(7, kv::view(pushed));
    store.pull(7, kv::view(value));
    CHECK(same_bytes(value, std::vector<Element>(pushed.rbegin(), pushed.rend())));
}

template <class Element>
void every_face_of(const char* name) {
    sums_are_those_of_a_loop<Element>("local");
    sums_are_those_of_a_loop<Element>("device");
    updaters_see_the_elements<Element>();
    // An integer key takes no other type, a float key no integer.
    std::vector<Element> value(3);
    std::vector<std::int64_t> whole(3);
    std::vector<std::int32_t> other(3);
    kv::Store store("local");
    store.init(name, kv::view(value));
    if (kv::dtype_of<Element>::value == KV_I64) {
        CHECK_THROWS(store.push(name, kv::view(other)), KV_ERR_DTYPE_MISMATCH, name);
        CHECK_THROWS(store.pull(name, kv::view(other)), KV_ERR_DTYPE_MISMATCH, name);
    } else {
        CHECK_THROWS(store.push(name, kv::view(whole)), KV_ERR_DTYPE_MISMATCH, name);
        CHECK_THROWS(store.pull(name, kv::view(whole)), KV_ERR_DTYPE_MISMATCH, name);
    }
}

void the_reference_rounds_to_nearest_even() {
    CHECK(narrowed<kv::float16>(1.0F, 0x7c00).bits == 0x3c00);
    CHECK(narrowed<kv::float16>(2049.0F, 0x7c00).bits == 0x6800);   // between 2048 and 2050
    CHECK(narrowed<kv::float16>(2051.0F, 0x7c00).bits == 0x6802);   // between 2050 and 2052
    CHECK(narrowed<kv::float16>(-65504.0F, 0x7c00).bits == 0xfbff);  // the largest
    CHECK(narrowed<kv::float16>(65519.0F, 0x7c00).bits == 0x7bff);
    CHECK(narrowed<kv::float16>(65520.0F, 0x7c00).bits == 0x7c00);
    CHECK(narrowed<kv::bfloat16>(1.0F, 0x7f80).bits == 0x3f80);
    CHECK(narrowed<kv::bfloat16>(257.0F, 0x7f80).bits == 0x4380);  // between 256 and 258
    CHECK(narrowed<kv::bfloat16>(259.0F, 0x7f80).bits == 0x4382);
}

void floats_are_converted_in_one_rounding() {
    std::vector<float> value = numbers<float>(6);
    value[0] = 65520.0F;   // infinity as binary16
    value[1] = 1e-8F;      // nothing as binary16
    value[2] = 2049.0F;    // half-way
    value[3] = -3e-6F;     // subnormal as binary16
    std::vector<kv::float16> half(count);
    std::vector<kv::bfloat16> brain(count);
    std::vector<double> wide(count);
    kv::Store store("local");
    store.init(0, kv::view(value));
    store.pull(0, {kv::view(half), kv::view(brain), kv::view(wide)});
    for (std::size_t i = 0; i < count; i++) {
        CHECK(half[i].bits == narrowed<kv::float16>(value[i], 0x7c00).bits);
        CHECK(brain[i].bits == narrowed<kv::bfloat16>(value[i], 0x7f80).bits);
        CHECK(wide[i] == static_cast<double>(value[i]));
    }
    // Three values of three types, converted to the key's type, then added.
    std::vector<float> got(count);
    store.push(0, {kv::view(brain), kv::view(wide), kv::view(half)});
    store.pull(0, kv::view(got));
    for (std::size_t i = 0; i < count; i++) {
        CHECK(got[i] == widened(brain[i]) + static_cast<float>(wide[i]) + widened(half[i]));
    }
}

void strided_views_are_read_and_written() {
    std::vector<float> matrix(12);
    for (std::size_t i = 0; i < matrix.size(); i++) {
        matrix[i] = static_cast<float>(i);
    }
    std::vector<float> out(24, -1.0F);
    kv::Store store("local");
    const kv::ConstTensor turned = kv::view(std::as_const(matrix).data(), {4, 3}, {1, 4});
    const kv::ConstTensor backwards = kv::view(&std::as_const(matrix)[11], {4, 3}, {-3, -1});
    const kv::Tensor gaps = kv::view(out.data(), {4, 3}, {6, 2});
    store.init(0, turned);
    store.push(0, {turned, backwards});
    store.pull(0, gaps);
    for (std::size_t row = 0; row < 4; row++) {
        for (std::size_t column = 0; column < 3; column++) {
            const float wanted = matrix[row + 4 * column] + matrix[11 - 3 * row - column];
            CHECK(out[6 * row + 2 * column] == wanted);
            CHECK(out[6 * row + 2 * column + 1] == -1.0F);
        }
    }
    // One number for a whole row is fine as a value, not as an out.
    std::vector<float> row{1, 2, 3};
    store.push(0, kv::view(row.data(), {4, 3}, {0, 1}));
    store.pull(0, kv::view(matrix, {4, 3}));
    CHECK(matrix[0] == 1 && matrix[4] == 2 && matrix[11] == 3);
    CHECK_THROWS(store.pull(0, kv::view(row.data(), {4, 3}, {0, 1})), KV_ERR_OVERLAP, "key 0");
}

// What is pushed comes back, byte for byte; what would be added is refused, and names the dtype.
template <class Element>
void opaque_values_are_replaced(const char* name) {
    std::array<Element, count> first{}, second{}, out{};
    int next = 0;
    for (auto* elements : {&first, &second}) {
        auto* bytes = reinterpret_cast<unsigned char*>(elements->data());
        for (std::size_t i = 0; i < sizeof *elements; i++) {
            // A bool is 0 or 1.
            bytes[i] = static_cast<unsigned char>(std::is_same_v<Element, bool> ? next % 2 : next);
            next += 7;
        }
    }
    const auto has = [&out](const std::array<Element, count>& wanted) {
        return std::memcmp(out.data(), wanted.data(), sizeof wanted) == 0;
    };
    const kv::Tensor pushed = kv::view(second.data(), {count});
    kv::Store store("local");
    store.init(1, kv::view(first.data(), {count}));
    store.push(1, pushed);
    store.pull(1, kv::view(out.data(), {count}));
    CHECK(has(second));
    CHECK_THROWS(store.push(1, {pushed, pushed}), KV_ERR_UNSUPPORTED, name);
    CHECK(store.key_info(1).dtype == kv::dtype_of<Element>::value);
}

void small_shapes_work() {
    double number = 2.5;
    std::vector<float> none;
    std::vector<float> deep(2, 3.0F);
    kv::Store store("local");
    store.init({1, 2, 3}, {kv::view(&number, {}), kv::view(none, {0, 5}),
                           kv::view(deep, {1, 1, 1, 1, 1, 1, 1, 1, 1, 2})});
    store.push({1, 2, 3}, {{kv::view(&number, {}), kv::view(&number, {})},
                           {kv::view(none, {0, 5})},
                           {kv::view(deep, {1, 1, 1, 1, 1, 1, 1, 1, 1, 2})}});
    store.pull(1, kv::view(&number, {}));
    store.pull(2, kv::view(none, {0, 5}));
    CHECK(number == 5.0);
    CHECK(store.key_info(1).shape.size() == 0);
    CHECK(store.key_info(2).shape[0] == 0 && store.key_info(2).shape[1] == 5);
    CHECK(store.key_info(3).shape.size() == 10 && store.key_info(3).shape[9] == 2);
}

}  // namespace

int main() {
    return run("elements", [] {
        the_reference_rounds_to_nearest_even();
        every_face_of<float>("float");
        every_face_of<double>("double");
        every_face_of<kv::float16>("float16");
        every_face_of<kv::bfloat16>("bfloat16");
        every_face_of<std::int8_t>("int8");
        every_face_of<std::uint8_t>("uint8");
        every_face_of<std::int16_t>("int16");
        every_face_of<std::uint16_t>("uint16");
        every_face_of<std::int32_t>("int32");
        every_face_of<std::uint32_t>("uint32");
        every_face_of<std::int64_t>("int64");
        every_face_of<std::uint64_t>("uint64");
        opaque_values_are_replaced<bool>("bool");
        opaque_values_are_replaced<std::complex<float>>("complex64");
        opaque_values_are_replaced<std::complex<double>>("complex128");
        opaque_values_are_replaced<kv::float8_e4m3fn>("float8_e4m3fn");
        opaque_values_are_replaced<kv::float8_e4m3fnuz>("float8_e4m3fnuz");
        opaque_values_are_replaced<kv::float8_e5m2>("float8_e5m2");
        opaque_values_are_replaced<kv::float8_e5m2fnuz>("float8_e5m2fnuz");
        opaque_values_are_replaced<kv::float8_e8m0fnu>("float8_e8m0fnu");
        floats_are_converted_in_one_rounding();
        strided_views_are_read_and_written();
        small_shapes_work();
    });
}
