// Views of memory: shapes, strides, containers, element types; none of it needs a store.
#include "check.hpp"

#include <cstdint>
#include <functional>
#include <numeric>

namespace {

static_assert(kv::dtype_of<float>::value == KV_F32);
static_assert(kv::dtype_of<double>::value == KV_F64);
static_assert(kv::dtype_of<kv::float16>::value == KV_F16);
static_assert(kv::dtype_of<kv::bfloat16>::value == KV_BF16);
static_assert(kv::dtype_of<std::int8_t>::value == KV_I8);
static_assert(kv::dtype_of<std::uint8_t>::value == KV_U8);
static_assert(kv::dtype_of<std::int32_t>::value == KV_I32);
static_assert(kv::dtype_of<std::int64_t>::value == KV_I64);
static_assert(kv::dtype_of<std::int16_t>::value == KV_I16);
static_assert(kv::dtype_of<std::uint16_t>::value == KV_U16);
static_assert(kv::dtype_of<std::uint32_t>::value == KV_U32);
static_assert(kv::dtype_of<std::uint64_t>::value == KV_U64);
static_assert(sizeof(kv::float16) == 2 && sizeof(kv::bfloat16) == 2);

// Read-only memory never becomes an out; memory that may be written becomes a value.
static_assert(std::is_convertible_v<kv::Tensor, kv::Values>);
static_assert(std::is_convertible_v<kv::ConstTensor, kv::Values>);
static_assert(std::is_convertible_v<kv::Tensor, kv::Outs>);
static_assert(!std::is_convertible_v<kv::ConstTensor, kv::Outs>);
static_assert(!std::is_convertible_v<std::vector<kv::ConstTensor>, kv::Outs>);

template <class Container, class = void>
constexpr bool viewable = false;
template <class Container>
constexpr bool viewable<Container, std::void_t<decltype(kv::view(std::declval<Container>()))>> =
    true;
static_assert(viewable<std::vector<float>&>);
static_assert(viewable<const std::vector<float>&>);
static_assert(!viewable<std::vector<float>>, "a temporary would dangle");
static_assert(!viewable<std::vector<bool>&>, "it has bits, and no array of bool");

struct Half {  // somebody else's type
    std::uint16_t bits;
};

}  // namespace

template <>
struct kv::dtype_of<Half> : std::integral_constant<kv_dtype, KV_F16> {};

namespace {

bool same(const kv::Shape& shape, std::initializer_list<std::int64_t> numbers) {
    return std::equal(shape.begin(), shape.end(), numbers.begin(), numbers.end());
}

void shapes_take_integers_of_every_type() {
    const std::size_t rows = 2;
    const short columns = 3;
    const kv::Shape mixed{rows, columns, 4L, std::uint8_t{5}};
    CHECK(same(mixed, {2, 3, 4, 5}));
    CHECK(mixed.size() == 4 && mixed[1] == 3);
    CHECK(same(kv::Shape(), {}));
    CHECK(same(kv::Shape(std::vector<std::int64_t>{7, 8}), {7, 8}));
    CHECK(same(kv::Shape{-1, 0}, {-1, 0}));
    CHECK_THROWS(kv::Shape{UINT64_MAX}, KV_ERR_INVALID_ARGUMENT, "2^63-1");
}

void shapes_copy_and_move_at_any_rank() {
    std::vector<std::int64_t> numbers(11);
    std::iota(numbers.begin(), numbers.end(), 1);
    for (std::size_t rank = 0; rank <= numbers.size(); rank++) {
        kv::Shape shape(numbers.data(), rank);
        const kv::Shape copy = shape;
        const kv::Shape moved = std::move(shape);
        CHECK(copy.size() == rank && moved.size() == rank);
        CHECK(std::equal(copy.begin(), copy.end(), numbers.begin()));
        CHECK(std::equal(moved.begin(), moved.end(), numbers.begin()));
    }
    const kv::Shape nine{1, 2, 3, 4, 5, 6, 7, 8, 9};
    CHECK(same(nine, {1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

template <class Object>
bool inside(const std::int64_t* place, const Object& object) {
    const std::less_equal<const void*> not_after;
    return not_after(&object, place) && not_after(place + 1, &object + 1);
}

void shapes_of_small_rank_are_inside_the_view() {
    std::vector<float> data(256);
    const kv::Tensor eight = kv::view(data, {2, 2, 2, 2, 2, 2, 2, 2});
    const kv::Tensor strided =
        kv::view(data.data(), {1, 1, 1, 1, 1, 1, 1, 4}, {9, 9, 9, 9, 9, 9, 9, 2});
    const kv::ConstTensor copy = strided;
    CHECK(inside(eight.raw().shape, eight) && eight.raw().strides == nullptr);
    CHECK(inside(copy.raw().shape, copy) && inside(copy.raw().strides, copy));
    CHECK(copy.raw().shape[7] == 4 && copy.raw().strides[7] == 2);
    const kv::Tensor nine = kv::view(data, {2, 2, 2, 2, 2, 2, 2, 2, 1});
    CHECK(nine.raw().ndim == 9 && !inside(nine.raw().shape, nine));
}

void a_view_describes_its_memory() {
    float data[6] = {};
    const kv::Tensor tensor = kv::view(data, {2, 3});
    CHECK(tensor.dtype() == KV_F32 && tensor.size() == 6);
    CHECK(tensor.device().type == KV_CPU && tensor.device().id == 0);
    CHECK(same(tensor.shape(), {2, 3}) && tensor.strides().size() == 0);
    CHECK(tensor.data<float>() == data);
    const kv_tensor raw = tensor.raw();
    CHECK(raw.data == data && raw.ndim == 2 && raw.dtype == KV_F32 && raw.byte_offset == 0);
    CHECK(raw.shape[0] == 2 && raw.shape[1] == 3 && raw.strides == nullptr);
    CHECK(raw.shape == tensor.shape().data());
    CHECK_THROWS(tensor.data<double>(), KV_ERR_DTYPE_MISMATCH, "element type");

    const kv::Tensor number = kv::view(data, {});
    CHECK(number.size() == 1 && number.raw().ndim == 0);
    CHECK(kv::view(data, {0, 3}).size() == 0);
}

void a_view_has_a_device() {
    std::vector<float> data(6);
    const kv::Tensor second = kv::view(data, {2, 3}).on(kv::cpu(2));
    CHECK(second.device().type == KV_CPU && second.device().id == 2);
    CHECK(second.data<float>() == data.data() && same(second.shape(), {2, 3}));
    const kv::ConstTensor other = kv::view(std::as_const(data)).on(kv::cuda(1));
    CHECK(other.raw().device.type == KV_CUDA && other.raw().device.id == 1);
}

void containers_give_their_size() {
    std::vector<double> vector(6);
    const std::vector<double> constant(6);
    std::array<std::int32_t, 4> array{};
    const std::array<std::int32_t, 4> constant_array{};
    float plain[5] = {};
    const kv::Tensor out = kv::view(vector, {3, 2});
    const kv::ConstTensor in = kv::view(constant, {3, 2});
    CHECK(out.data<double>() == vector.data() && in.data<double>() == constant.data());
    CHECK(same(kv::view(vector).shape(), {6}));
    CHECK(same(kv::view(array).shape(), {4}) && kv::view(array).dtype() == KV_I32);
    CHECK(kv::view(constant_array, {2, 2}).data<std::int32_t>() == constant_array.data());
    CHECK(same(kv::view(plain).shape(), {5}));
    std::vector<double> none;
    CHECK(kv::view(none).size() == 0 && kv::view(none, {4, 0}).size() == 0);
    CHECK(same(kv::view(vector, {1, 6, 1}).shape(), {1, 6, 1}));
}

void containers_of_another_size_are_refused() {
    std::vector<float> data(6);
    const auto refused = KV_ERR_INVALID_ARGUMENT;
    CHECK_THROWS(kv::view(data, {2, 2}), refused, "6 elements");
    CHECK_THROWS(kv::view(data, {7}), refused, "6 elements");
    CHECK_THROWS(kv::view(data, {}), refused, "6 elements");
    CHECK_THROWS(kv::view(data, {0}), refused, "6 elements");
    CHECK_THROWS(kv::view(data, {-2, -3}), refused, "6 elements");
    CHECK_THROWS(kv::view(data, {6, 1LL << 62, 4}), refused, "6 elements");
    CHECK_THROWS(kv::view(data, {1LL << 33, 1LL << 33, 6}), refused, "6 elements");
    std::vector<float> none;
    CHECK_THROWS(kv::view(none, {}), refused, "0 elements");
    CHECK_THROWS(kv::view(none, {1}), refused, "0 elements");
    CHECK_THROWS(kv::view(none, {-1, 0}), refused, "0 elements");
}

void strides_are_kept() {
    float data[6] = {};
    const kv::Tensor turned = kv::view(data, {3, 2}, {1, 3});
    const kv_tensor raw = turned.raw();
    CHECK(raw.strides != nullptr && raw.strides[0] == 1 && raw.strides[1] == 3);
    CHECK(same(turned.strides(), {1, 3}) && turned.size() == 6);
    const float* constant = data + 5;
    const kv::ConstTensor backwards = kv::view(constant, {6}, {-1});
    CHECK(backwards.raw().strides[0] == -1 && backwards.data<float>() == data + 5);
    CHECK(same(turned.on(kv::cpu(1)).strides(), {1, 3}));
    CHECK_THROWS(kv::view(data, {3, 2}, {1}), KV_ERR_INVALID_ARGUMENT, "1 strides for 2");
}

void a_copy_outlives_its_origin() {
    std::vector<float> data(6);
    std::vector<kv::Tensor> kept;
    {
        const kv::Tensor origin = kv::view(data.data(), {2, 3}, {3, 1});
        kept.assign(3, origin);
    }
    for (const kv::Tensor& tensor : kept) {
        CHECK(tensor.raw().shape == tensor.shape().data());
        CHECK(same(tensor.shape(), {2, 3}) && same(tensor.strides(), {3, 1}));
    }
}

void a_raw_tensor_is_copied() {
    double data[4] = {1, 2, 3, 4};
    std::int64_t shape[] = {2};
    kv_tensor raw = kv_tensor_cpu(data, KV_F64, 1, shape);
    raw.byte_offset = 2 * sizeof(double);
    const kv::Tensor tensor(raw);
    shape[0] = 99;
    CHECK(tensor.size() == 2 && tensor.data<double>()[0] == 3);
    CHECK(tensor.raw().byte_offset == 2 * sizeof(double));
    raw.ndim = -1;
    CHECK_THROWS(kv::Tensor(raw), KV_ERR_INVALID_ARGUMENT, "negative");
    raw.ndim = 1;
    raw.shape = nullptr;
    CHECK_THROWS(kv::Tensor(raw), KV_ERR_INVALID_ARGUMENT, "no shape");
    raw.ndim = 0;
    CHECK(kv::Tensor(raw).size() == 1);
}

void own_types_get_a_dtype() {
    std::vector<Half> data(3);
    CHECK(kv::view(data).dtype() == KV_F16);
    CHECK(kv::view(data).data<Half>() == data.data());
}

#if __cplusplus >= 202002L
void spans_are_containers() {
    std::vector<float> data(6);
    const std::span<float> all(data);
    const std::span<const float, 4> part(data.data(), 4);
    CHECK(same(kv::view(all).shape(), {6}) && same(kv::view(all, {2, 3}).shape(), {2, 3}));
    CHECK(same(kv::view(std::span(data).subspan(2)).shape(), {4}));
    CHECK(kv::view(std::span(data).first(4), {2, 2}).data<float>() == data.data());
    CHECK(kv::view(part, {2, 2}).data<float>() == data.data());
    static_assert(std::is_same_v<decltype(kv::view(all)), kv::Tensor>);
    static_assert(std::is_same_v<decltype(kv::view(part)), kv::ConstTensor>);
    CHECK_THROWS(kv::view(part, {3}), KV_ERR_INVALID_ARGUMENT, "4 elements");
    CHECK_THROWS(kv::view(std::span(data), {3}), KV_ERR_INVALID_ARGUMENT, "6 elements");
}
#else
void spans_are_containers() {}  // there are none in C++17
#endif

#if defined(__STDCPP_FLOAT16_T__) && defined(__STDCPP_BFLOAT16_T__)
static_assert(kv::dtype_of<std::float16_t>::value == KV_F16);
static_assert(kv::dtype_of<std::bfloat16_t>::value == KV_BF16);
#endif

void timeouts_round_up() {
    using namespace std::chrono;
    CHECK(kv::Timeout(seconds(30)).raw() == 30000);
    CHECK(kv::Timeout(microseconds(1)).raw() == 1);
    CHECK(kv::Timeout(microseconds(1500)).raw() == 2);
    CHECK(kv::Timeout(duration<double>(0.25)).raw() == 250);
    CHECK(kv::Timeout(seconds(0)).raw() == 0);
    CHECK(kv::Timeout(milliseconds(-1)).raw() == 0);
    CHECK(kv::Timeout(seconds::min()).raw() == 0);
    CHECK(kv::Timeout(kv::forever).raw() == -1);
    CHECK(kv::Timeout(nanoseconds::max()).raw() == 9223372036855);
    CHECK(kv::Timeout(milliseconds::max()).raw() == -1);
}

}  // namespace

int main() {
    return run("views", [] {
        shapes_take_integers_of_every_type();
        shapes_copy_and_move_at_any_rank();
        shapes_of_small_rank_are_inside_the_view();
        a_view_describes_its_memory();
        a_view_has_a_device();
        containers_give_their_size();
        containers_of_another_size_are_refused();
        strides_are_kept();
        a_copy_outlives_its_origin();
        a_raw_tensor_is_copied();
        own_types_get_a_dtype();
        spans_are_containers();
        timeouts_round_up();
    });
}
