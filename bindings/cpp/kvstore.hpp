/// kvstore.hpp - the C++ face of kvstore.h: header-only, C++17.
///
/// It owns handles, turns statuses into exceptions, and has no behaviour of its own. The comment
/// of a function names the function of kvstore.h that it calls; the contract is written there.
///
/// Buffers are lent. A call without kv::async gives them back when it returns or throws. A call
/// with it gives them back when its kv::Ticket is done, cancelled or destroyed.

#ifndef KVSTORE_HPP
#define KVSTORE_HPP

#include <kvstore.h>

#include <array>
#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <locale>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#if __cplusplus >= 202002L
#include <span>
#endif
#if __cplusplus > 202002L && __has_include(<stdfloat>)
#include <stdfloat>
#endif

namespace kv {

/// A key: your integers from 0 to 2^63-1, or the number of a name, from Store::intern().
using Key = kv_key;

/// What every failing call throws. what() is the text of kv_last_error().
class Error : public std::runtime_error {
public:
    Error(kv_status status, const std::string& message)
        : std::runtime_error(message), status_(status) {}

    /// Why the call failed, one of KV_ERR_....
    [[nodiscard]] kv_status status() const noexcept { return status_; }

private:
    kv_status status_;
};

namespace detail {

inline void check(kv_status status) {
    if (status != KV_OK) {
        throw Error(status, kv_last_error());
    }
}

[[noreturn]] inline void refuse(const std::string& message) {
    throw Error(KV_ERR_INVALID_ARGUMENT, message);
}

/// Ends a text with a NUL, as C wants it. One inside would cut it short unnoticed.
inline std::string terminated(std::string_view text) {
    if (text.find('\0') != std::string_view::npos) {
        refuse("a name or value contains a NUL character");
    }
    return std::string(text);
}

}  // namespace detail

/// As a timeout: wait for ever.
inline constexpr std::chrono::hours forever = std::chrono::hours::max();

/// How long to wait: any std::chrono duration, rounded up to milliseconds, or kv::forever.
/// A negative one, such as what is left until a deadline that has passed, does not wait.
class Timeout {
public:
    template <class Number, class Period>
    constexpr Timeout(std::chrono::duration<Number, Period> time) noexcept
        : milliseconds_(round_up(std::chrono::duration<double, std::milli>(time).count())) {}

    /// The same for the C functions, where -1 is for ever.
    [[nodiscard]] constexpr std::int64_t raw() const noexcept { return milliseconds_; }

private:
    /// 9e15 ms are 285,000 years; whole numbers up to there are exact in a double.
    static constexpr std::int64_t round_up(double time) noexcept {
        if (time >= 9e15) {
            return -1;
        }
        const std::int64_t whole = time > 0 ? static_cast<std::int64_t>(time) : 0;
        return static_cast<double>(whole) < time ? whole + 1 : whole;
    }

    std::int64_t milliseconds_;
};

/// IEEE 754 binary16, to be stored and moved; it does not calculate.
struct float16 {
    std::uint16_t bits;
};

/// bfloat16, to be stored and moved; it does not calculate.
struct bfloat16 {
    std::uint16_t bits;
};

/// Floats of 8 bits, to be stored and moved; the library does not add them.
struct float8_e4m3fn {
    std::uint8_t bits;
};
struct float8_e4m3fnuz {
    std::uint8_t bits;
};
struct float8_e5m2 {
    std::uint8_t bits;
};
struct float8_e5m2fnuz {
    std::uint8_t bits;
};
struct float8_e8m0fnu {
    std::uint8_t bits;
};

/// The dtype of an element type. Specialise it for a type of yours with the same representation.
template <class Element>
struct dtype_of;

template <> struct dtype_of<float> : std::integral_constant<kv_dtype, KV_F32> {};
template <> struct dtype_of<double> : std::integral_constant<kv_dtype, KV_F64> {};
template <> struct dtype_of<float16> : std::integral_constant<kv_dtype, KV_F16> {};
template <> struct dtype_of<bfloat16> : std::integral_constant<kv_dtype, KV_BF16> {};
template <> struct dtype_of<std::int8_t> : std::integral_constant<kv_dtype, KV_I8> {};
template <> struct dtype_of<std::uint8_t> : std::integral_constant<kv_dtype, KV_U8> {};
template <> struct dtype_of<std::int16_t> : std::integral_constant<kv_dtype, KV_I16> {};
template <> struct dtype_of<std::uint16_t> : std::integral_constant<kv_dtype, KV_U16> {};
template <> struct dtype_of<std::int32_t> : std::integral_constant<kv_dtype, KV_I32> {};
template <> struct dtype_of<std::uint32_t> : std::integral_constant<kv_dtype, KV_U32> {};
template <> struct dtype_of<std::int64_t> : std::integral_constant<kv_dtype, KV_I64> {};
template <> struct dtype_of<std::uint64_t> : std::integral_constant<kv_dtype, KV_U64> {};
template <> struct dtype_of<bool> : std::integral_constant<kv_dtype, KV_BOOL> {};
template <> struct dtype_of<std::complex<float>> : std::integral_constant<kv_dtype, KV_C64> {};
template <> struct dtype_of<std::complex<double>> : std::integral_constant<kv_dtype, KV_C128> {};
template <> struct dtype_of<float8_e4m3fn> : std::integral_constant<kv_dtype, KV_F8_E4M3FN> {};
template <> struct dtype_of<float8_e4m3fnuz> : std::integral_constant<kv_dtype, KV_F8_E4M3FNUZ> {};
template <> struct dtype_of<float8_e5m2> : std::integral_constant<kv_dtype, KV_F8_E5M2> {};
template <> struct dtype_of<float8_e5m2fnuz> : std::integral_constant<kv_dtype, KV_F8_E5M2FNUZ> {};
template <> struct dtype_of<float8_e8m0fnu> : std::integral_constant<kv_dtype, KV_F8_E8M0FNU> {};
static_assert(sizeof(bool) == 1, "an element of KV_BOOL is a byte");
#ifdef __STDCPP_FLOAT16_T__
template <> struct dtype_of<std::float16_t> : std::integral_constant<kv_dtype, KV_F16> {};
#endif
#ifdef __STDCPP_BFLOAT16_T__
template <> struct dtype_of<std::bfloat16_t> : std::integral_constant<kv_dtype, KV_BF16> {};
#endif

/// The extents of a tensor, or its strides in elements. Up to eight take no memory of the heap.
class Shape {
public:
    /// One of them, made from an integer of any type.
    class Number {
    public:
        template <class Integer, std::enable_if_t<std::is_integral_v<Integer>, int> = 0>
        Number(Integer number) : value(static_cast<std::int64_t>(number)) {
            if ((number > 0) != (value > 0)) {
                detail::refuse("an extent or stride is above 2^63-1");
            }
        }

        std::int64_t value;
    };

    Shape() = default;
    /// Copies `count` numbers.
    Shape(const std::int64_t* numbers, std::size_t count) : count_(count) {
        far_.resize(count > near_.size() ? count : 0);
        for (std::size_t i = 0; i < count; i++) {
            place()[i] = numbers[i];
        }
    }
    Shape(const std::vector<std::int64_t>& numbers) : Shape(numbers.data(), numbers.size()) {}
    Shape(std::initializer_list<Number> numbers) : count_(numbers.size()) {
        far_.resize(count_ > near_.size() ? count_ : 0);
        std::int64_t* next = place();
        for (const Number& number : numbers) {
            *next++ = number.value;
        }
    }

    [[nodiscard]] std::size_t size() const noexcept { return count_; }
    [[nodiscard]] const std::int64_t* data() const noexcept {
        return far_.empty() ? near_.data() : far_.data();
    }
    [[nodiscard]] const std::int64_t* begin() const noexcept { return data(); }
    [[nodiscard]] const std::int64_t* end() const noexcept { return data() + count_; }
    std::int64_t operator[](std::size_t i) const noexcept { return data()[i]; }

private:
    std::int64_t* place() noexcept { return far_.empty() ? near_.data() : far_.data(); }

    std::array<std::int64_t, 8> near_{};
    std::vector<std::int64_t> far_;
    std::size_t count_ = 0;
};

/// A view of memory to be read: a kv_tensor that owns its shape and strides, but no elements.
class ConstTensor {
public:
    /// Views what a kv_tensor views; its shape and strides are copied.
    explicit ConstTensor(const kv_tensor& tensor)
        : tensor_(tensor),
          shape_(tensor.shape, rank_of(tensor)),
          strides_(tensor.strides, tensor.strides == nullptr ? 0 : rank_of(tensor)) {}

    [[nodiscard]] kv_dtype dtype() const noexcept { return tensor_.dtype; }
    /// The device with the memory of the elements. In an updater of a store with the option
    /// updater_memory=device it is a GPU for keys there: data() is then an address in its memory, for
    /// work that is queued on kv::stream(device()), whose context is current. It is a CPU otherwise.
    [[nodiscard]] kv_device device() const noexcept { return tensor_.device; }
    [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
    /// Empty if the tensor is row-major without gaps.
    [[nodiscard]] const Shape& strides() const noexcept { return strides_; }

    /// The number of elements.
    [[nodiscard]] std::size_t size() const noexcept {
        std::size_t count = 1;
        for (const std::int64_t extent : shape_) {
            count *= static_cast<std::size_t>(extent);
        }
        return count;
    }

    /// The first element; the host must not access it if device() is a GPU. Throws
    /// KV_ERR_DTYPE_MISMATCH if `Element` is not the element type.
    template <class Element>
    [[nodiscard]] const Element* data() const {
        if (tensor_.dtype != dtype_of<Element>::value) {
            throw Error(KV_ERR_DTYPE_MISMATCH, "data: this is not the tensor's element type");
        }
        return reinterpret_cast<const Element*>(static_cast<const char*>(tensor_.data) +
                                                tensor_.byte_offset);
    }

    /// The same view for the C functions. It points into this object, which must live on.
    [[nodiscard]] kv_tensor raw() const& noexcept {
        kv_tensor tensor = tensor_;
        tensor.shape = const_cast<std::int64_t*>(shape_.data());
        tensor.strides =
            strides_.size() == 0 ? nullptr : const_cast<std::int64_t*>(strides_.data());
        return tensor;
    }
    kv_tensor raw() const&& = delete;

    /// The same view, labelled with a device.
    [[nodiscard]] ConstTensor on(kv_device device) const {
        kv_tensor tensor = raw();
        tensor.device = device;
        return ConstTensor(tensor);
    }

private:
    static std::size_t rank_of(const kv_tensor& tensor) {
        if (tensor.ndim < 0 || (tensor.ndim > 0 && tensor.shape == nullptr)) {
            detail::refuse("a tensor has no shape, or a negative number of dimensions");
        }
        return static_cast<std::size_t>(tensor.ndim);
    }

    kv_tensor tensor_;
    Shape shape_;
    Shape strides_;
};

/// A view of memory that may be written.
class Tensor : public ConstTensor {
public:
    using ConstTensor::ConstTensor;

    /// As ConstTensor::data(), to be written.
    template <class Element>
    [[nodiscard]] Element* data() const {
        return const_cast<Element*>(ConstTensor::data<Element>());
    }

    /// As ConstTensor::on().
    [[nodiscard]] Tensor on(kv_device device) const {
        kv_tensor tensor = raw();
        tensor.device = device;
        return Tensor(tensor);
    }
};

/// Ordinary memory under the number of a device. The number has no effect.
[[nodiscard]] constexpr kv_device cpu(std::int32_t id = 0) noexcept { return {KV_CPU, id}; }

/// Memory of a CUDA device.
[[nodiscard]] constexpr kv_device cuda(std::int32_t id = 0) noexcept { return {KV_CUDA, id}; }

namespace detail {

inline kv_tensor raw_view(const void* data, kv_dtype dtype, const Shape& shape,
                          const Shape& strides) {
    if (strides.size() != 0 && strides.size() != shape.size()) {
        refuse("view: " + std::to_string(strides.size()) + " strides for " +
               std::to_string(shape.size()) + " dimensions");
    }
    kv_tensor tensor{};
    tensor.data = const_cast<void*>(data);
    tensor.device = cpu();
    tensor.ndim = static_cast<std::int32_t>(shape.size());
    tensor.dtype = dtype;
    tensor.shape = const_cast<std::int64_t*>(shape.data());
    tensor.strides = strides.size() == 0 ? nullptr : const_cast<std::int64_t*>(strides.data());
    return tensor;
}

/// Refuses a shape that has not as many elements as its container.
inline void check_size(const Shape& shape, std::size_t size) {
    std::size_t count = 1;
    bool fits = true;
    for (const std::int64_t extent : shape) {
        const auto factor = static_cast<std::size_t>(extent);
        fits = fits && extent >= 0 && !__builtin_mul_overflow(count, factor, &count);
    }
    if (!fits || count != size) {
        refuse("view: the shape does not have the container's " + std::to_string(size) +
               " elements");
    }
}

}  // namespace detail

/// Views the elements at a pointer: row-major, or with strides in elements. `{}` is one number.
template <class Element>
[[nodiscard]] Tensor view(Element* data, const Shape& shape, const Shape& strides = {}) {
    return Tensor(detail::raw_view(data, dtype_of<Element>::value, shape, strides));
}
template <class Element>
[[nodiscard]] ConstTensor view(const Element* data, const Shape& shape,
                               const Shape& strides = {}) {
    return ConstTensor(detail::raw_view(data, dtype_of<Element>::value, shape, strides));
}

/// Views the elements at a pointer into the memory of a device: `kv::view(weight, {256, 10},
/// kv::cuda(0))`. The host does not touch them.
template <class Element, class Device,
          std::enable_if_t<std::is_same_v<Device, kv_device>, int> = 0>
[[nodiscard]] auto view(Element* data, const Shape& shape, Device device) {
    return view(data, shape).on(device);
}
template <class Element>
[[nodiscard]] auto view(Element* data, const Shape& shape, const Shape& strides,
                        kv_device device) {
    return view(data, shape, strides).on(device);
}

/// Views all elements of a std::vector, std::array, std::span or their like, row-major. Throws if
/// the shape has more or fewer. A temporary container is refused by the compiler.
template <class Container>
[[nodiscard]] auto view(Container& data, const Shape& shape)
    -> decltype(view(std::data(data), shape)) {
    detail::check_size(shape, std::size(data));
    return view(std::data(data), shape);
}
template <class Container>
[[nodiscard]] auto view(Container& data) -> decltype(view(std::data(data), Shape())) {
    return view(std::data(data), Shape{std::size(data)});
}
#if __cplusplus >= 202002L
template <class Element, std::size_t extent>
[[nodiscard]] auto view(std::span<Element, extent> data, const Shape& shape) {
    detail::check_size(shape, data.size());
    return view(data.data(), shape);
}
template <class Element, std::size_t extent>
[[nodiscard]] auto view(std::span<Element, extent> data) {
    return view(data.data(), Shape{data.size()});
}
#endif

/// An argument: one key, an integer or a name. A negative integer throws KV_ERR_INVALID_ARGUMENT.
/// A name is interned at each use; Store::intern() saves that.
class AnyKey {
public:
    template <class Integer, std::enable_if_t<std::is_integral_v<Integer>, int> = 0>
    AnyKey(Integer number) : number_(static_cast<Key>(number)) {
        if constexpr (std::is_signed_v<Integer>) {
            if (number < 0) {
                detail::refuse("key " + std::to_string(number) + " is negative");
            }
        }
    }
    AnyKey(std::string_view name) : name_(name), named_(true) {}
    AnyKey(const std::string& name) : AnyKey(std::string_view(name)) {}
    AnyKey(const char* name) : named_(true) {
        if (name == nullptr) {
            detail::refuse("a key's name is null");
        }
        name_ = name;
    }
    AnyKey(std::nullptr_t) = delete;

    /// The number, for the C functions. See kv_intern().
    [[nodiscard]] Key raw(kv_store* store) const {
        Key key = number_;
        if (named_) {
            detail::check(kv_intern(store, detail::terminated(name_).c_str(), &key));
        }
        return key;
    }

private:
    Key number_ = 0;
    std::string_view name_;
    bool named_ = false;
};

/// An argument: one key that all tensors of the call belong to, or a list with a group of tensors
/// for each. It refers to what it was made from.
class Keys {
public:
    template <class One, std::enable_if_t<std::is_convertible_v<const One&, AnyKey>, int> = 0>
    Keys(const One& key) : one_(key), single_(true) {}
    Keys(std::initializer_list<AnyKey> keys) : list_(keys) {}
    template <class One, std::enable_if_t<std::is_convertible_v<const One&, AnyKey>, int> = 0>
    Keys(const std::vector<One>& keys) : list_(keys.begin(), keys.end()) {}

    [[nodiscard]] bool single() const noexcept { return single_; }
    [[nodiscard]] std::size_t size() const noexcept { return single_ ? 1 : list_.size(); }
    const AnyKey& operator[](std::size_t i) const noexcept { return single_ ? one_ : list_[i]; }

private:
    AnyKey one_ = 0;
    std::vector<AnyKey> list_;
    bool single_ = false;
};

/// An argument: one tensor, a list of them, or a list of lists, one for each key. It refers to
/// what it was made from.
template <class View>
class TensorList {
public:
    TensorList(const View& tensor) : one_(tensor.raw()), single_(true) {}
    TensorList(std::initializer_list<TensorList> groups) {
        for (const TensorList& group : groups) {
            add(group);
        }
    }
    template <class One, std::enable_if_t<std::is_convertible_v<const One&, TensorList>, int> = 0>
    TensorList(const std::vector<One>& groups) {
        for (const One& group : groups) {
            add(group);
        }
    }

    [[nodiscard]] const kv_tensor* data() const noexcept { return single_ ? &one_ : all_.data(); }
    [[nodiscard]] std::size_t size() const noexcept { return single_ ? 1 : all_.size(); }
    [[nodiscard]] std::size_t groups() const noexcept { return single_ ? 1 : sizes_.size(); }
    [[nodiscard]] std::size_t group_size(std::size_t i) const noexcept {
        return single_ ? 1 : sizes_[i];
    }

private:
    void add(const TensorList& group) {
        all_.insert(all_.end(), group.data(), group.data() + group.size());
        sizes_.push_back(group.size());
    }

    kv_tensor one_{};
    std::vector<kv_tensor> all_;
    std::vector<std::size_t> sizes_;
    bool single_ = false;
};

/// Tensors that are read, and tensors that are written.
using Values = TensorList<ConstTensor>;
using Outs = TensorList<Tensor>;

namespace detail {

/// The (key, tensor) pairs of a call. One pair takes no memory of the heap.
class Pairs {
public:
    template <class View>
    Pairs(kv_store* store, const Keys& keys, const TensorList<View>& tensors)
        : tensors_(tensors.data()), count_(tensors.size()) {
        if (keys.single()) {
            one_ = keys[0].raw(store);
            all_.resize(count_ == 1 ? 0 : count_, one_);
            return;
        }
        if (keys.size() != tensors.groups()) {
            refuse(std::to_string(keys.size()) + " keys, but tensors for " +
                   std::to_string(tensors.groups()));
        }
        for (std::size_t i = 0; i < keys.size(); i++) {
            all_.resize(all_.size() + tensors.group_size(i), keys[i].raw(store));
        }
    }

    [[nodiscard]] const Key* keys() const noexcept { return all_.empty() ? &one_ : all_.data(); }
    [[nodiscard]] const kv_tensor* tensors() const noexcept { return tensors_; }
    [[nodiscard]] std::size_t size() const noexcept { return count_; }

private:
    Key one_ = 0;
    std::vector<Key> all_;
    const kv_tensor* tensors_;
    std::size_t count_;
};

/// The only tensor of a list.
template <class View>
const kv_tensor* one(const TensorList<View>& tensors) {
    if (tensors.size() != 1) {
        refuse(std::to_string(tensors.size()) + " tensors, where one is given");
    }
    return tensors.data();
}

}  // namespace detail

/// Makes a call queue its work and return a Ticket: `kv::async`, or `kv::async(priority)`.
struct Async {
    std::int32_t priority;
    constexpr Async operator()(std::int32_t of) const noexcept { return {of}; }
};
inline constexpr Async async{0};

/// Gets the failure of an operation that has ended, or nullptr. What it throws is lost. Calls
/// on the store that could wait throw KV_ERR_REENTRANT inside of it. See kv_on_done().
using DoneCallback = std::function<void(const Error* failure)>;

/// An operation that has ended, from Store::next_done(); without one the ticket is 0.
struct Ended {
    kv_ticket ticket;
    kv_status status;
};

namespace detail {

template <class Callable>
void drop(void* context) noexcept {
    delete static_cast<Callable*>(context);
}

inline void tell(void* context, kv_ticket, kv_status status) noexcept {
    try {
        const auto& callback = *static_cast<const DoneCallback*>(context);
        if (status == KV_OK) {
            callback(nullptr);
        } else {
            const Error failure(status, kv_last_error());
            callback(&failure);
        }
    } catch (...) {
        // No caller is left to be told.
    }
}

}  // namespace detail

/// An operation under way, and the loan of its buffers. One thread at a time.
///
/// Let it end before its buffers and, unless wait(), done() or cancel() have succeeded, before its
/// Store. The destructor cancels: it waits until the operation has let go of the buffers. If an
/// updater keeps it from that for the store's option `timeout_ms`, the destructor gives up,
/// silently: the buffers stay lent until the updater has returned, so leave them allocated.
class [[nodiscard]] Ticket {
public:
    Ticket() = default;
    /// Takes over a ticket of the C functions.
    Ticket(kv_store* store, kv_ticket ticket) noexcept
        : store_(store), ticket_(ticket), lent_(true) {}
    Ticket(Ticket&& other) noexcept { swap(other); }
    /// Cancels the operation that was here, as the destructor does.
    Ticket& operator=(Ticket&& other) noexcept {
        Ticket(std::move(other)).swap(*this);
        return *this;
    }
    ~Ticket() {
        if (lent_) {
            kv_cancel(store_, ticket_);
        }
    }

    /// Waits, and throws the operation's error. KV_ERR_TIMEOUT: the loan goes on. See kv_wait().
    void wait(Timeout timeout = forever) {
        detail::check(settle(kv_wait(store_, ticket_, timeout.raw())));
    }

    /// Says whether it has completed, without waiting; throws the operation's error.
    [[nodiscard]] bool done() {
        const kv_status status = settle(kv_wait(store_, ticket_, 0));
        detail::check(status == KV_ERR_TIMEOUT ? KV_OK : status);
        return status == KV_OK;
    }

    /// Ends the loan now, or throws KV_ERR_TIMEOUT if an updater holds on to it. See kv_cancel().
    void cancel() { detail::check(settle(kv_cancel(store_, ticket_))); }

    /// Has a function called once when the operation has ended, on a thread of the library, or here and
    /// now if it has. The destructor cancels all the same: keep the ticket, or release() it. See
    /// kv_on_done().
    void on_done(DoneCallback callback) const {
        if (!callback) {
            detail::refuse("an empty function");
        }
        void* context = new DoneCallback(std::move(callback));
        detail::check(
            kv_on_done(store_, ticket_, detail::tell, context, detail::drop<DoneCallback>));
    }

    /// Has Store::next_done() give the operation when it has ended. See kv_watch().
    void watch() const { detail::check(kv_watch(store_, ticket_)); }

    /// Leaves the loan to you: the destructor does nothing. Wait with kv_wait(), or for all.
    kv_ticket release() noexcept {
        lent_ = false;
        return ticket_;
    }

    /// The number, for the C functions.
    [[nodiscard]] kv_ticket raw() const noexcept { return ticket_; }

private:
    /// Only success proves that the loan is over; to cancel what has failed does no harm.
    kv_status settle(kv_status status) noexcept {
        lent_ = lent_ && status != KV_OK;
        return status;
    }

    void swap(Ticket& other) noexcept {
        std::swap(store_, other.store_);
        std::swap(ticket_, other.ticket_);
        std::swap(lent_, other.lent_);
    }

    kv_store* store_ = nullptr;
    kv_ticket ticket_ = 0;
    bool lent_ = false;
};

/// Merges `input`, the sum of a push, into `stored`. What it throws makes the push fail with
/// KV_ERR_CALLBACK and the exception's what(). See kv_updater.
using Updater = std::function<void(Key key, const ConstTensor& input, Tensor& stored)>;

/// Gives the tensor of a file the name of its key; nothing leaves it out. What it throws ends the load with
/// KV_ERR_CALLBACK and the exception's what(). See kv_key_namer.
using KeyNamer = std::function<std::optional<std::string>(std::string_view tensor)>;

/// Hears what the library has to say. What it throws is lost. See kv_logger.
using Logger = std::function<void(kv_log_level level, std::string_view message)>;

namespace detail {

/// Calls a function of the user for the library; what it throws becomes the text of the failure.
template <class Function>
kv_status guarded(const Function& function) noexcept {
    try {
        function();
        return KV_OK;
    } catch (const std::exception& exception) {
        kv_set_callback_error(exception.what());
    } catch (...) {
        kv_set_callback_error("an exception that is no std::exception");
    }
    return KV_ERR_CALLBACK;
}

inline kv_status update(void* context, kv_key key, const kv_tensor* input,
                        const kv_tensor* stored) noexcept {
    return guarded([&] {
        Tensor out(*stored);
        (*static_cast<const Updater*>(context))(key, ConstTensor(*input), out);
    });
}

/// A namer of keys, and the name that it gave last.
struct Naming {
    const KeyNamer* namer;
    std::string name;
};

inline kv_status name_key(void* context, const char* tensor, const char** key) noexcept {
    return guarded([&] {
        auto& naming = *static_cast<Naming*>(context);
        std::optional<std::string> name = (*naming.namer)(tensor);
        *key = nullptr;
        if (name) {
            naming.name = std::move(*name);
            *key = naming.name.c_str();
        }
    });
}

inline void log(void* context, std::int32_t level, const char* message) noexcept {
    try {
        (*static_cast<const Logger*>(context))(static_cast<kv_log_level>(level), message);
    } catch (...) {
        // Nobody is left to be told.
    }
}

}  // namespace detail

/// Sends what the library has to say to `logger`; an empty one silences it. See kv_set_logger().
inline void set_logger(kv_log_level level, Logger logger) {
    if (!logger) {
        detail::check(kv_set_logger(level, nullptr, nullptr, nullptr));
        return;
    }
    void* context = new Logger(std::move(logger));
    detail::check(kv_set_logger(level, detail::log, context, detail::drop<Logger>));
}

/// Has the calls of this thread ask `check`, while they wait, whether to end. See kv_set_interrupt().
inline void set_interrupt(kv_interrupt_check check, void* context = nullptr) {
    detail::check(kv_set_interrupt(check, context));
}

/// Names the stream on which this thread's calls use the memory of a CUDA device: a CUstream or
/// cudaStream_t; nullptr is the legacy default stream. See kv_set_stream().
inline void set_stream(kv_device device, void* stream) {
    detail::check(kv_set_stream(device, stream));
}

/// The stream on which this thread's calls use the memory of a CUDA device. See kv_stream().
[[nodiscard]] inline void* stream(kv_device device) {
    void* stream = nullptr;
    detail::check(kv_stream(device, &stream));
    return stream;
}

/// Names a stream for a scope, and in the end the one that was named before. Both must exist until
/// then, and the guard must be destroyed on the thread that made it.
class stream_guard {
public:
    stream_guard(kv_device device, void* stream) : device_(device), before_(kv::stream(device)) {
        set_stream(device, stream);
    }
    stream_guard(const stream_guard&) = delete;
    stream_guard& operator=(const stream_guard&) = delete;
    ~stream_guard() { kv_set_stream(device_, before_); }

private:
    kv_device device_;
    void* before_;
};

namespace detail {

/// Options as the text `name=value,...`, from which the library reads the same numbers again.
template <class Numbers>
std::string listed(const Numbers& numbers) {
    std::ostringstream text;
    text.exceptions(std::ios_base::badbit);  // a lack of memory must not cut the text short
    text.imbue(std::locale::classic());
    text.precision(std::numeric_limits<double>::max_digits10);
    for (const auto& [name, number] : numbers) {
        text << name << '=' << static_cast<double>(number) << ',';
    }
    return text.str();
}

}  // namespace detail

/// The version of the library, such as `0.1.0`. See kv_version().
[[nodiscard]] inline std::string_view version() noexcept { return kv_version(); }

/// Whether the build of the library has a feature, such as `dist`. See kv_capable().
[[nodiscard]] inline bool capable(const std::string& feature) noexcept {
    return kv_capable(feature.c_str()) != 0;
}

/// The version of the binary interface. See kv_abi_version().
[[nodiscard]] inline std::uint32_t abi_version() noexcept { return kv_abi_version(); }

/// Options for a Store: `{{"threads", "4"}, {"updater_undo", "yes"}}`.
class Config {
public:
    /// See kv_config_create() and kv_config_set().
    Config(std::initializer_list<std::pair<std::string_view, std::string_view>> options = {}) {
        kv_config* config = nullptr;
        detail::check(kv_config_create(&config));
        config_.reset(config);
        for (const auto& [name, value] : options) {
            set(name, value);
        }
    }

    /// See kv_config_set().
    void set(std::string_view name, std::string_view value) {
        detail::check(kv_config_set(raw(), detail::terminated(name).c_str(),
                                    detail::terminated(value).c_str()));
    }

    [[nodiscard]] kv_config* raw() const noexcept { return config_.get(); }

private:
    struct Free {
        void operator()(kv_config* config) const noexcept { kv_config_free(config); }
    };
    std::unique_ptr<kv_config, Free> config_;
};

/// Keys with their values and outs, which Store::bind() has checked once: calls cost little beside the
/// bytes. Destroy it before the memory of the tensors, and before or after its Store. Calls of several
/// threads are made one after the other. See kv_bind().
class Bound {
public:
    /// Takes over a handle of kv_bind() on this store.
    Bound(kv_store* store, kv_bound* bound) noexcept : store_(store), bound_(bound) {}

    /// Merges the sum of each key's values into the stored value. See kv_bound_push().
    void push() { run(kv_bound_push); }
    Ticket push(Async how) { return start(kv_bound_push, how); }

    /// Copies the stored values to the outs. See kv_bound_pull().
    void pull() { run(kv_bound_pull); }
    Ticket pull(Async how) { return start(kv_bound_pull, how); }

    /// Pushes, then pulls, in one operation. See kv_bound_pushpull().
    void pushpull() { run(kv_bound_pushpull); }
    Ticket pushpull(Async how) { return start(kv_bound_pushpull, how); }

    /// The handle, for the C functions; this object goes on owning it.
    [[nodiscard]] kv_bound* raw() const noexcept { return bound_.get(); }

private:
    using Call = kv_status (*)(kv_bound*, std::int32_t, kv_ticket*);
    struct Free {
        void operator()(kv_bound* bound) const noexcept { kv_bound_free(bound); }
    };

    void run(Call call) { detail::check(call(raw(), 0, nullptr)); }

    Ticket start(Call call, Async how) {
        kv_ticket ticket = 0;
        detail::check(call(raw(), how.priority, &ticket));
        return Ticket(store_, ticket);
    }

    kv_store* store_;
    std::unique_ptr<kv_bound, Free> bound_;
};

/// What clipping has measured, see Store::last_norm().
struct LastNorm {
    double norm;
    std::uint64_t skips;
};

/// How a transaction has ended, see Store::commit().
enum class Commit : std::int32_t {
    /// Its pushes are kept.
    kept = KV_COMMIT_KEPT,
    /// Its norm is above that of clipping: push the gradients again, by one call.
    exceeded = KV_COMMIT_EXCEEDED,
    /// Its norm is not finite: a skipped push.
    skipped = KV_COMMIT_SKIPPED,
};

/// What a key was initialised with.
struct KeyInfo {
    kv_dtype dtype;
    Shape shape;
};

/// A store. Any thread may call, any number at a time; the destructor must come last. It only
/// frees, and reports nothing: close() tells you of failures. See kv_free().
class Store {
public:
    /// Opens a store: `kv::Store store("local", {{"threads", "4"}})`. See kv_create().
    explicit Store(std::string_view type) : store_(create(type, nullptr)) {}
    Store(std::string_view type, const Config& config) : store_(create(type, config.raw())) {}

    /// The handle, for the C functions; this object goes on owning it.
    [[nodiscard]] kv_store* raw() const noexcept { return store_.get(); }

    /// Finishes all operations, and closes. See kv_close().
    void close(Timeout timeout) { detail::check(kv_close(raw(), timeout.raw())); }

    /// Fails all operations, and closes at once. See kv_abort().
    void abort() noexcept { kv_abort(raw()); }

    /// Gives the key of a name. See kv_intern().
    Key intern(std::string_view name) { return AnyKey(name).raw(raw()); }

    /// Stores the first value of each key. See kv_init().
    void init(const Keys& keys, const Values& values) {
        const detail::Pairs in(raw(), keys, values);
        detail::check(kv_init(raw(), in.keys(), in.tensors(), in.size()));
    }

    /// Merges the sum of each key's values into the stored value. See kv_push().
    void push(const Keys& keys, const Values& values) {
        const detail::Pairs in(raw(), keys, values);
        detail::check(kv_push(raw(), in.keys(), in.tensors(), in.size(), 0, nullptr));
    }
    Ticket push(const Keys& keys, const Values& values, Async how) {
        const detail::Pairs in(raw(), keys, values);
        kv_ticket ticket = 0;
        detail::check(kv_push(raw(), in.keys(), in.tensors(), in.size(), how.priority, &ticket));
        return Ticket(raw(), ticket);
    }

    /// Copies the stored values out. See kv_pull().
    void pull(const Keys& keys, const Outs& outs) {
        const detail::Pairs out(raw(), keys, outs);
        detail::check(kv_pull(raw(), out.keys(), out.tensors(), out.size(), 0, nullptr));
    }
    Ticket pull(const Keys& keys, const Outs& outs, Async how) {
        const detail::Pairs out(raw(), keys, outs);
        kv_ticket ticket = 0;
        detail::check(kv_pull(raw(), out.keys(), out.tensors(), out.size(), how.priority, &ticket));
        return Ticket(raw(), ticket);
    }

    /// Pushes, then pulls, in one operation; without `out_keys`, the same keys. See kv_pushpull().
    void pushpull(const Keys& keys, const Values& values, const Outs& outs) {
        both(kv_pushpull, keys, values, keys, outs, 0, nullptr);
    }
    void pushpull(const Keys& keys, const Values& values, const Keys& out_keys, const Outs& outs) {
        both(kv_pushpull, keys, values, out_keys, outs, 0, nullptr);
    }
    Ticket pushpull(const Keys& keys, const Values& values, const Outs& outs, Async how) {
        return both(kv_pushpull, keys, values, keys, outs, how);
    }
    Ticket pushpull(const Keys& keys, const Values& values, const Keys& out_keys, const Outs& outs,
                    Async how) {
        return both(kv_pushpull, keys, values, out_keys, outs, how);
    }

    /// Initialises, then pulls; without `out_keys`, the same keys. See kv_broadcast().
    void broadcast(const Keys& keys, const Values& values, const Outs& outs) {
        both(kv_broadcast, keys, values, keys, outs, 0, nullptr);
    }
    void broadcast(const Keys& keys, const Values& values, const Keys& out_keys,
                   const Outs& outs) {
        both(kv_broadcast, keys, values, out_keys, outs, 0, nullptr);
    }
    Ticket broadcast(const Keys& keys, const Values& values, const Outs& outs, Async how) {
        return both(kv_broadcast, keys, values, keys, outs, how);
    }
    Ticket broadcast(const Keys& keys, const Values& values, const Keys& out_keys,
                     const Outs& outs, Async how) {
        return both(kv_broadcast, keys, values, out_keys, outs, how);
    }

    /// Reduces values of all workers, and gives the result to all. See kv_allreduce().
    void allreduce(kv_reduction op, const Values& values, const Outs& outs) {
        detail::check(kv_allreduce(raw(), op, values.data(), values.size(), outs.data(),
                                   outs.size(), nullptr));
    }
    Ticket allreduce(kv_reduction op, const Values& values, const Outs& outs, Async /*how*/) {
        return started([&](kv_ticket* ticket) {
            return kv_allreduce(raw(), op, values.data(), values.size(), outs.data(), outs.size(),
                                ticket);
        });
    }

    /// Reduces values of all workers, for the worker of rank `root`. See kv_reduce().
    void reduce(kv_reduction op, std::int32_t root, const Values& values, const Outs& outs) {
        detail::check(kv_reduce(raw(), op, root, values.data(), values.size(), outs.data(),
                                outs.size(), nullptr));
    }
    Ticket reduce(kv_reduction op, std::int32_t root, const Values& values, const Outs& outs,
                  Async /*how*/) {
        return started([&](kv_ticket* ticket) {
            return kv_reduce(raw(), op, root, values.data(), values.size(), outs.data(),
                             outs.size(), ticket);
        });
    }

    /// Reduces what all workers give for a worker, for that one. See kv_reduce_scatter().
    void reduce_scatter(kv_reduction op, const Values& values, const Outs& out) {
        detail::check(kv_reduce_scatter(raw(), op, values.data(), values.size(), detail::one(out),
                                        nullptr));
    }
    Ticket reduce_scatter(kv_reduction op, const Values& values, const Outs& out, Async /*how*/) {
        return started([&](kv_ticket* ticket) {
            return kv_reduce_scatter(raw(), op, values.data(), values.size(), detail::one(out),
                                     ticket);
        });
    }

    /// Gives the first tensor of the worker of rank `root` to all. See kv_broadcast_from().
    void broadcast_from(std::int32_t root, const Outs& outs) {
        detail::check(kv_broadcast_from(raw(), root, outs.data(), outs.size(), nullptr));
    }
    Ticket broadcast_from(std::int32_t root, const Outs& outs, Async /*how*/) {
        return started([&](kv_ticket* ticket) {
            return kv_broadcast_from(raw(), root, outs.data(), outs.size(), ticket);
        });
    }

    /// Gives the values of all workers to all: an out for each rank. See kv_allgather().
    void allgather(const Values& value, const Outs& outs) {
        detail::check(kv_allgather(raw(), detail::one(value), outs.data(), outs.size(), nullptr));
    }
    Ticket allgather(const Values& value, const Outs& outs, Async /*how*/) {
        return started([&](kv_ticket* ticket) {
            return kv_allgather(raw(), detail::one(value), outs.data(), outs.size(), ticket);
        });
    }

    /// Gives the values of all workers to the worker of rank `root`. See kv_gather().
    void gather(std::int32_t root, const Values& value, const Outs& outs) {
        detail::check(kv_gather(raw(), root, detail::one(value), outs.data(), outs.size(),
                                nullptr));
    }
    Ticket gather(std::int32_t root, const Values& value, const Outs& outs, Async /*how*/) {
        return started([&](kv_ticket* ticket) {
            return kv_gather(raw(), root, detail::one(value), outs.data(), outs.size(), ticket);
        });
    }

    /// Gives each worker one of the values of the worker of rank `root`. See kv_scatter().
    void scatter(std::int32_t root, const Values& values, const Outs& out) {
        detail::check(kv_scatter(raw(), root, values.data(), values.size(), detail::one(out),
                                 nullptr));
    }
    Ticket scatter(std::int32_t root, const Values& values, const Outs& out, Async /*how*/) {
        return started([&](kv_ticket* ticket) {
            return kv_scatter(raw(), root, values.data(), values.size(), detail::one(out), ticket);
        });
    }

    /// Gives each worker one value of every worker. See kv_all_to_all().
    void all_to_all(const Values& values, const Outs& outs) {
        detail::check(kv_all_to_all(raw(), values.data(), values.size(), outs.data(), outs.size(),
                                    nullptr));
    }
    Ticket all_to_all(const Values& values, const Outs& outs, Async /*how*/) {
        return started([&](kv_ticket* ticket) {
            return kv_all_to_all(raw(), values.data(), values.size(), outs.data(), outs.size(),
                                 ticket);
        });
    }

    /// Checks keys with their values and outs once, for calls that repeat; without `out_keys`, the same
    /// keys. The memory of the tensors is lent until the result is destroyed. `{}` stands for no keys and
    /// no tensors: such a list is pulled only, or pushed only. See kv_bind().
    [[nodiscard]] Bound bind(const Keys& keys, const Values& values, const Outs& outs) {
        return bind(keys, values, keys, outs);
    }
    [[nodiscard]] Bound bind(const Keys& keys, const Values& values, const Keys& out_keys,
                             const Outs& outs) {
        const detail::Pairs in(raw(), keys, values), out(raw(), out_keys, outs);
        kv_bound* bound = nullptr;
        detail::check(kv_bind(raw(), in.keys(), in.tensors(), in.size(), out.keys(), out.tensors(),
                              out.size(), &bound));
        return Bound(raw(), bound);
    }

    /// Merges values into some rows of each key: row `row_ids[i]` gets row i. See kv_push_rows().
    void push_rows(const Keys& keys, const Values& row_ids, const Values& rows) {
        on_rows(kv_push_rows, keys, row_ids, rows, 0, nullptr);
    }
    Ticket push_rows(const Keys& keys, const Values& row_ids, const Values& rows, Async how) {
        return on_rows(kv_push_rows, keys, row_ids, rows, how);
    }

    /// Copies rows of the stored values out: row i is row `row_ids[i]`. See kv_pull_rows().
    void pull_rows(const Keys& keys, const Values& row_ids, const Outs& outs) {
        on_rows(kv_pull_rows, keys, row_ids, outs, 0, nullptr);
    }
    Ticket pull_rows(const Keys& keys, const Values& row_ids, const Outs& outs, Async how) {
        return on_rows(kv_pull_rows, keys, row_ids, outs, how);
    }

    /// Removes keys. See kv_remove().
    void remove(const Keys& keys) {
        std::vector<Key> all;
        for (std::size_t i = 0; i < keys.size(); i++) {
            all.push_back(keys[i].raw(raw()));
        }
        detail::check(kv_remove(raw(), all.data(), all.size()));
    }

    /// Waits for every operation that is pending now. See kv_wait_all().
    void wait_all(Timeout timeout = forever) {
        detail::check(kv_wait_all(raw(), timeout.raw()));
    }

    /// Sets how sums are merged into stored values; an empty one assigns. See kv_set_updater().
    void set_updater(Updater updater) {
        if (!updater) {
            detail::check(kv_set_updater(raw(), nullptr, nullptr, nullptr));
            return;
        }
        void* context = new Updater(std::move(updater));
        detail::check(kv_set_updater(raw(), detail::update, context, detail::drop<Updater>));
    }

    /// Sets the rule that merges sums into stored values: `("sgd", "momentum=0.9,wd=1e-4")`, or
    /// with numbers `("sgd", {{"momentum", 0.9}, {"wd", 1e-4}})`. See kv_set_optimizer().
    void set_optimizer(std::string_view name, std::string_view params = {}) {
        detail::check(kv_set_optimizer(raw(), detail::terminated(name).c_str(),
                                       detail::terminated(params).c_str()));
    }
    void set_optimizer(std::string_view name,
                       std::initializer_list<std::pair<std::string_view, double>> params) {
        set_optimizer(name, detail::listed(params));
    }
    /// The same with a std::map, or its like, from names to numbers.
    template <class Map, class = typename Map::mapped_type>
    void set_optimizer(std::string_view name, const Map& params) {
        set_optimizer(name, detail::listed(params));
    }

    /// Gives some keys a rule of their own: a name of set_optimizer(), `none` or `store`. See
    /// kv_set_optimizer_for().
    void set_optimizer_for(const Keys& keys, std::string_view name, std::string_view params = {}) {
        std::vector<Key> all;
        for (std::size_t i = 0; i < keys.size(); i++) {
            all.push_back(keys[i].raw(raw()));
        }
        detail::check(kv_set_optimizer_for(raw(), all.data(), all.size(),
                                           detail::terminated(name).c_str(),
                                           detail::terminated(params).c_str()));
    }
    void set_optimizer_for(const Keys& keys, std::string_view name,
                           std::initializer_list<std::pair<std::string_view, double>> params) {
        set_optimizer_for(keys, name, detail::listed(params));
    }

    /// Changes an option of the optimizer, whose state stays. See kv_set_hyperparameter().
    void set_hyperparameter(std::string_view name, double value) {
        detail::check(kv_set_hyperparameter(raw(), detail::terminated(name).c_str(), value));
    }

    /// Changes `lr_mult` or `wd_mult` of one key, or an option of its own rule. See
    /// kv_set_key_hyperparameter().
    void set_key_hyperparameter(const AnyKey& key, std::string_view name, double value) {
        detail::check(kv_set_key_hyperparameter(raw(), key.raw(raw()),
                                                detail::terminated(name).c_str(), value));
    }

    /// Gives this worker's pushes a weight, such as the number of samples of a batch: the sum of a round
    /// is divided by the sum of its weights. See kv_set_weight().
    void set_weight(double weight) { detail::check(kv_set_weight(raw(), weight)); }

    /// Ends set_weight(). See kv_clear_weight().
    void clear_weight() { detail::check(kv_clear_weight(raw())); }

    /// Clips the gradients of each push by the norm of those of all its keys: 0 ends it, an infinite
    /// number only measures. With `KV_CLIP_FAIL` a norm that is not finite is an error, else the push is
    /// skipped. See kv_set_clipping().
    void set_clipping(double max_norm, std::uint32_t flags = 0) {
        detail::check(kv_set_clipping(raw(), max_norm, flags));
    }

    /// The norm of the last push that was measured, and how many pushes were skipped. See kv_last_norm().
    [[nodiscard]] LastNorm last_norm() const {
        LastNorm last{};
        detail::check(kv_last_norm(raw(), &last.norm, &last.skips));
        return last;
    }

    /// Begins a transaction: rollback() takes back what later pushes change, until commit() keeps it. See kv_begin().
    void begin() { detail::check(kv_begin(raw())); }

    /// Ends the transaction. Its pushes are taken back if their norm is above that of set_clipping(), or not finite.
    /// See kv_commit().
    Commit commit() {
        std::int32_t outcome = 0;
        detail::check(kv_commit(raw(), &outcome));
        return static_cast<Commit>(outcome);
    }

    /// Ends the transaction, and takes its pushes back. See kv_rollback().
    void rollback() { detail::check(kv_rollback(raw())); }

    /// Sends the values of pushes through a codec: `("2bit", "threshold=0.5")`, or with numbers
    /// `("topk", {{"ratio", 0.05}})`; `"none"` for none. See kv_set_compression().
    void set_compression(std::string_view name, std::string_view params = {}) {
        detail::check(kv_set_compression(raw(), detail::terminated(name).c_str(),
                                         detail::terminated(params).c_str()));
    }
    void set_compression(std::string_view name,
                         std::initializer_list<std::pair<std::string_view, double>> params) {
        set_compression(name, detail::listed(params));
    }
    /// The same with a std::map, or its like, from names to numbers.
    template <class Map, class = typename Map::mapped_type>
    void set_compression(std::string_view name, const Map& params) {
        set_compression(name, detail::listed(params));
    }

    /// Writes everything that training goes on with to a file. See kv_save().
    void save(std::string_view path) const {
        detail::check(kv_save(raw(), detail::terminated(path).c_str()));
    }

    /// Takes over what a file of save() has. See kv_load().
    void load(std::string_view path) {
        detail::check(kv_load(raw(), detail::terminated(path).c_str()));
    }
    /// Takes over the values of a file of another program, for the keys that `namer` gives their names.
    /// See kv_load_values().
    void load_values(std::string_view path, const KeyNamer& namer) {
        detail::Naming naming{namer ? &namer : nullptr, {}};
        detail::check(kv_load_values(raw(), detail::terminated(path).c_str(),
                                     namer ? detail::name_key : nullptr, &naming));
    }

    /// Opens the store of a group: keys, rounds, rules and collective calls of some of the workers, each of
    /// which makes this call. See kv_group().
    [[nodiscard]] Store group(std::string_view name, const std::vector<std::int32_t>& ranks) {
        kv_store* group = nullptr;
        detail::check(kv_group(raw(), detail::terminated(name).c_str(), ranks.data(), ranks.size(),
                               &group));
        return Store(group);
    }

    /// Waits until all workers are here. See kv_barrier().
    void barrier(Timeout timeout = forever) { detail::check(kv_barrier(raw(), timeout.raw())); }

    /// Says that this worker pushes no more. See kv_done().
    void done() { detail::check(kv_done(raw())); }

    /// Waits until all workers are here, done or not; then none is done. See kv_resume().
    void resume(Timeout timeout = forever) { detail::check(kv_resume(raw(), timeout.raw())); }

    /// A descriptor that is readable while next_done() has an operation to give; the store's own, only
    /// to be polled. See kv_event_fd().
    [[nodiscard]] int event_fd() const { return get(kv_event_fd); }

    /// Takes an operation of Ticket::watch() that has ended; never waits. See kv_next_done().
    Ended next_done() {
        Ended ended{0, KV_OK};
        detail::check(kv_next_done(raw(), &ended.ticket, &ended.status));
        return ended;
    }

    /// Serves as a server or a scheduler until the job ends; abort() on another thread ends it.
    /// Throws KV_ERR_ROLE on a worker. See kv_serve().
    void serve() { detail::check(kv_serve(raw())); }

    /// The canonical type, such as `local`. See kv_type().
    [[nodiscard]] std::string type() const { return get(kv_type); }

    /// What this process is in the job: KV_ROLE_WORKER, KV_ROLE_SERVER or KV_ROLE_SCHEDULER. See
    /// kv_role().
    [[nodiscard]] kv_node_role role() const { return static_cast<kv_node_role>(get(kv_role)); }

    /// The number of this process among those of its role, from 0. See kv_rank().
    [[nodiscard]] std::int32_t rank() const { return get(kv_rank); }

    /// How many workers there are. See kv_num_workers().
    [[nodiscard]] std::int32_t num_workers() const { return get(kv_num_workers); }

    /// How many workers and servers are lost. See kv_num_lost().
    [[nodiscard]] std::int32_t num_lost() const { return get(kv_num_lost); }

    /// The name of a key that was interned. See kv_key_name().
    [[nodiscard]] std::string name(Key key) const {
        const char* name = nullptr;
        detail::check(kv_key_name(raw(), key, &name));
        return name;
    }

    /// The dtype and shape of a key. See kv_key_info().
    [[nodiscard]] KeyInfo key_info(const AnyKey& key) const {
        const Key number = key.raw(raw());
        std::vector<std::int64_t> shape;
        kv_dtype dtype = KV_F32;
        std::int32_t rank = 8;
        kv_status status = KV_ERR_BUFFER_TOO_SMALL;
        while (status == KV_ERR_BUFFER_TOO_SMALL) {
            shape.resize(static_cast<std::size_t>(rank));
            status = kv_key_info(raw(), number, &dtype, &rank, shape.data(), rank);
        }
        detail::check(status);
        return {dtype, Shape(shape.data(), static_cast<std::size_t>(rank))};
    }

    /// The device on which the value of a key is. See kv_key_device().
    [[nodiscard]] kv_device key_device(const AnyKey& key) const {
        kv_device device = cpu();
        detail::check(kv_key_device(raw(), key.raw(raw()), &device));
        return device;
    }

    /// The round of each key, and digests of its value and its state. See kv_digest().
    [[nodiscard]] std::vector<kv_key_digest> digest(const Keys& keys) const {
        std::vector<Key> all;
        for (std::size_t i = 0; i < keys.size(); i++) {
            all.push_back(keys[i].raw(raw()));
        }
        std::vector<kv_key_digest> digests(all.size());
        detail::check(kv_digest(raw(), all.data(), digests.data(), all.size()));
        return digests;
    }

    /// The last round of a key: how many workers took part, and the sum of their weights. See
    /// kv_last_round().
    [[nodiscard]] kv_round last_round(const AnyKey& key) const {
        kv_round round{};
        round.struct_size = sizeof round;
        detail::check(kv_last_round(raw(), key.raw(raw()), &round));
        return round;
    }

    /// The keys that have a value. See kv_keys().
    [[nodiscard]] std::vector<Key> keys() const {
        std::vector<Key> keys;
        std::size_t count = 16;
        kv_status status = KV_ERR_BUFFER_TOO_SMALL;
        while (status == KV_ERR_BUFFER_TOO_SMALL) {
            keys.resize(count);
            status = kv_keys(raw(), keys.data(), keys.size(), &count);
        }
        detail::check(status);
        keys.resize(count);
        return keys;
    }

    /// Counters and settings as a JSON object. See kv_stats().
    [[nodiscard]] std::string stats() const {
        std::string text;
        std::size_t length = 1023;
        kv_status status = KV_ERR_BUFFER_TOO_SMALL;
        while (status == KV_ERR_BUFFER_TOO_SMALL) {
            text.resize(length + 1);
            status = kv_stats(raw(), text.data(), text.size(), &length);
        }
        detail::check(status);
        text.resize(length);
        return text;
    }

private:
    struct Free {
        void operator()(kv_store* store) const noexcept { kv_free(store); }
    };

    explicit Store(kv_store* owned) noexcept : store_(owned) {}

    static kv_store* create(std::string_view type, const kv_config* config) {
        kv_store* store = nullptr;
        detail::check(kv_create(detail::terminated(type).c_str(), config, &store));
        return store;
    }

    template <class Value>
    Value get(kv_status (*getter)(kv_store*, Value*)) const {
        Value value{};
        detail::check(getter(raw(), &value));
        return value;
    }

    template <class Call>
    Ticket started(const Call& call) {
        kv_ticket ticket = 0;
        detail::check(call(&ticket));
        return Ticket(raw(), ticket);
    }

    void both(decltype(kv_pushpull)* call, const Keys& keys, const Values& values,
              const Keys& out_keys, const Outs& outs, std::int32_t priority, kv_ticket* ticket) {
        const detail::Pairs in(raw(), keys, values);
        const detail::Pairs out(raw(), out_keys, outs);
        detail::check(call(raw(), in.keys(), in.tensors(), in.size(), out.keys(), out.tensors(),
                           out.size(), priority, ticket));
    }
    Ticket both(decltype(kv_pushpull)* call, const Keys& keys, const Values& values,
                const Keys& out_keys, const Outs& outs, Async how) {
        kv_ticket ticket = 0;
        both(call, keys, values, out_keys, outs, how.priority, &ticket);
        return Ticket(raw(), ticket);
    }

    template <class Rows>
    void on_rows(decltype(kv_push_rows)* call, const Keys& keys, const Values& row_ids,
                 const Rows& rows, std::int32_t priority, kv_ticket* ticket) {
        const detail::Pairs ids(raw(), keys, row_ids);
        const detail::Pairs pairs(raw(), keys, rows);
        if (ids.size() != pairs.size()) {
            detail::refuse(std::to_string(pairs.size()) + " tensors of rows, but " +
                           std::to_string(ids.size()) + " of row ids");
        }
        detail::check(call(raw(), pairs.keys(), ids.tensors(), pairs.tensors(), pairs.size(),
                           priority, ticket));
    }
    template <class Rows>
    Ticket on_rows(decltype(kv_push_rows)* call, const Keys& keys, const Values& row_ids,
                   const Rows& rows, Async how) {
        kv_ticket ticket = 0;
        on_rows(call, keys, row_ids, rows, how.priority, &ticket);
        return Ticket(raw(), ticket);
    }

    std::unique_ptr<kv_store, Free> store_;
};

}  // namespace kv

#endif  // KVSTORE_HPP
