// Trains a small network on handwritten digits, data-parallel: four threads share the weights
// through one store. Each computes the gradients of its quarter of a batch; one of them pushes,
// for each parameter, the list of the four; the store adds them up and descends; all pull.
#include <kvstore.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t pixels = 64;
constexpr std::size_t hidden = 64;
constexpr std::size_t classes = 10;
constexpr std::size_t quarters = 4;  // one worker each
constexpr std::size_t batch = 128;
constexpr std::size_t quarter = batch / quarters;
constexpr float learning_rate = 0.5F;
constexpr double required_accuracy = 0.96;

// SplitMix64 (Steele, Lea and Flood, 2014): the same numbers on every machine.
class Random {
public:
    std::uint64_t next() {
        state_ += 0x9e3779b97f4a7c15;
        std::uint64_t mixed = state_;
        mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
        mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
        return mixed ^ (mixed >> 31);
    }
    // In [-1, 1): 24 random bits, so that each result is exact in float.
    float uniform() { return static_cast<float>(next() >> 40) * 0x1p-23F - 1.0F; }

private:
    std::uint64_t state_ = 2026;
};

struct Digit {
    std::array<float, pixels> image;  // 0 to 1
    std::size_t label;
};

struct Digits {
    std::vector<Digit> train;
    std::vector<Digit> held_out;
};

// A line has 64 pixel values from 0 to 16 and the label, separated by commas.
Digit parse(const std::string& line) {
    const char* next = line.data();
    const char* const end = next + line.size();
    const auto number = [&](int highest, char after) {
        int value = -1;
        next = std::from_chars(next, end, value).ptr;
        const bool ended = after == '\0' ? next == end : next != end && *next++ == after;
        if (!ended || value < 0 || value > highest) {
            throw std::runtime_error("not a line of the digits: " + line);
        }
        return value;
    };
    Digit digit{};
    for (float& pixel : digit.image) {
        pixel = static_cast<float>(number(16, ',')) / 16.0F;
    }
    digit.label = static_cast<std::size_t>(number(classes - 1, '\0'));
    return digit;
}

// Every fifth digit is held out, to be classified but never trained on.
Digits read(const std::string& path) {
    std::ifstream file(path);
    Digits digits;
    std::string line;
    for (std::size_t i = 0; std::getline(file, line); i++) {
        (i % 5 == 0 ? digits.held_out : digits.train).push_back(parse(line));
    }
    if (digits.train.size() < batch) {
        throw std::runtime_error(path + ": no file with digits for at least one batch");
    }
    return digits;
}

// The parameters of the network, or their gradients; matrices are row-major, [in][out].
struct Network {
    std::array<float, pixels * hidden> weight1{};
    std::array<float, hidden> bias1{};
    std::array<float, hidden * classes> weight2{};
    std::array<float, classes> bias2{};

    // In the order of `names`.
    std::array<kv::Tensor, 4> tensors() {
        return {kv::view(weight1, {pixels, hidden}), kv::view(bias1),
                kv::view(weight2, {hidden, classes}), kv::view(bias2)};
    }
};

const std::vector<std::string> names{"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"};

template <class Weights>
void fill(Weights& weights, std::size_t units, Random& random) {
    const float scale = std::sqrt(6.0F / static_cast<float>(units));
    std::generate(weights.begin(), weights.end(), [&] { return random.uniform() * scale; });
}

using Units = std::array<float, hidden>;
using Scores = std::array<float, classes>;

// Computes the rectified hidden units and the classes' scores before the softmax.
void forward(const Network& network, const Digit& digit, Units& units, Scores& scores) {
    units = network.bias1;
    for (std::size_t i = 0; i < pixels; i++) {
        for (std::size_t j = 0; j < hidden; j++) {
            units[j] += digit.image[i] * network.weight1[i * hidden + j];
        }
    }
    scores = network.bias2;
    for (std::size_t j = 0; j < hidden; j++) {
        units[j] = std::max(units[j], 0.0F);
        for (std::size_t c = 0; c < classes; c++) {
            scores[c] += units[j] * network.weight2[j * classes + c];
        }
    }
}

std::size_t best(const Scores& scores) {
    return static_cast<std::size_t>(std::max_element(scores.begin(), scores.end()) -
                                    scores.begin());
}

// Turns scores into the gradient of the cross entropy by them; returns the cross entropy.
double softmax_gradient(Scores& scores, std::size_t label) {
    const float highest = scores[best(scores)];  // taken off, so that exp cannot overflow
    const float right = scores[label] - highest;
    float sum = 0.0F;
    for (float& score : scores) {
        score = std::exp(score - highest);
        sum += score;
    }
    for (float& score : scores) {
        score /= sum;
    }
    scores[label] -= 1.0F;
    return static_cast<double>(std::log(sum) - right);
}

// Adds a digit's share of a batch's gradient to `gradient`; returns its loss.
double add_gradient(const Network& network, const Digit& digit, Network& gradient) {
    Units units{};
    Units by_units{};  // the loss by the hidden units, before they are rectified
    Scores by_scores{};
    forward(network, digit, units, by_scores);
    const double loss = softmax_gradient(by_scores, digit.label);
    for (std::size_t c = 0; c < classes; c++) {
        by_scores[c] /= static_cast<float>(batch);
        gradient.bias2[c] += by_scores[c];
    }
    for (std::size_t j = 0; j < hidden; j++) {
        float sum = 0.0F;
        for (std::size_t c = 0; c < classes; c++) {
            sum += network.weight2[j * classes + c] * by_scores[c];
            gradient.weight2[j * classes + c] += units[j] * by_scores[c];
        }
        by_units[j] = units[j] > 0.0F ? sum : 0.0F;
        gradient.bias1[j] += by_units[j];
    }
    for (std::size_t i = 0; i < pixels; i++) {
        for (std::size_t j = 0; j < hidden; j++) {
            gradient.weight1[i * hidden + j] += digit.image[i] * by_units[j];
        }
    }
    return loss;
}

double accuracy(const Network& network, const std::vector<Digit>& digits) {
    Units units{};
    Scores scores{};
    std::size_t right = 0;
    for (const Digit& digit : digits) {
        forward(network, digit, units, scores);
        right += best(scores) == digit.label ? 1U : 0U;
    }
    return static_cast<double>(right) / static_cast<double>(digits.size());
}

// Where the workers meet. If one fails, the others leave instead of waiting for it.
class Meeting {
public:
    // Waits for all workers; true for exactly one of them.
    bool join() {
        std::unique_lock<std::mutex> lock(mutex_);
        const std::size_t round = round_;
        const bool last = ++arrived_ == quarters;
        if (last) {
            arrived_ = 0;
            round_++;
            changed_.notify_all();
        }
        changed_.wait(lock, [&] { return round_ != round || failure_ != nullptr; });
        if (failure_ != nullptr) {
            throw std::runtime_error("another worker failed");
        }
        return last;
    }

    // The first failure counts; those of the others follow from it.
    void fail(std::exception_ptr failure) {
        const std::lock_guard<std::mutex> lock(mutex_);
        failure_ = failure_ == nullptr ? failure : failure_;
        changed_.notify_all();
    }

    void rethrow() const {
        if (failure_ != nullptr) {
            std::rethrow_exception(failure_);
        }
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::size_t arrived_ = 0;
    std::size_t round_ = 0;
    std::exception_ptr failure_;
};

// Between two meetings a worker changes its own quarter's gradients and loss and nothing else
// here; the rest belongs to the one worker that a meeting elects.
class Training {
public:
    Training(const Digits& digits, int epochs) : digits_(digits), epochs_(epochs) {
        Network first;
        fill(first.weight1, pixels + hidden, random_);
        fill(first.weight2, hidden + classes, random_);
        for (const std::string& name : names) {
            keys_.push_back(store_.intern(name));
        }
        store_.init(keys_, as_list(first));
        store_.set_updater([](kv::Key, const kv::ConstTensor& input, kv::Tensor& stored) {
            const float* gradient = input.data<float>();
            float* weight = stored.data<float>();
            for (std::size_t i = 0; i < stored.size(); i++) {
                weight[i] -= learning_rate * gradient[i];
            }
        });
        order_.resize(digits.train.size());
        std::iota(order_.begin(), order_.end(), std::size_t{0});
        shuffle();
    }

    // Returns the accuracy on the digits held out.
    double run() {
        std::vector<std::thread> workers;
        for (std::size_t i = 0; i < quarters; i++) {
            workers.emplace_back([this, i] {
                try {
                    work(i);
                } catch (...) {
                    meeting_.fail(std::current_exception());
                }
            });
        }
        for (std::thread& worker : workers) {
            worker.join();
        }
        meeting_.rethrow();
        store_.close(std::chrono::seconds(10));
        return accuracy_;
    }

private:
    static std::vector<kv::Tensor> as_list(Network& network) {
        const auto tensors = network.tensors();
        return {tensors.begin(), tensors.end()};
    }

    void work(std::size_t self) {
        Network weights;  // its own copy, as if on a device of its own
        const std::vector<kv::Tensor> outs = as_list(weights);
        store_.pull(keys_, outs);
        for (int epoch = 1; epoch <= epochs_; epoch++) {
            for (std::size_t start = 0; start + batch <= order_.size(); start += batch) {
                compute(self, weights, start);
                if (meeting_.join()) {
                    push();
                }
                meeting_.join();  // the push has been applied
                store_.pull(keys_, outs);
            }
            if (meeting_.join()) {
                finish(epoch, weights);
            }
            meeting_.join();  // the order of the next epoch is there
        }
    }

    void compute(std::size_t self, const Network& weights, std::size_t start) {
        gradients_[self] = Network();
        for (std::size_t i = 0; i < quarter; i++) {
            const Digit& digit = digits_.train[order_[start + self * quarter + i]];
            losses_[self] += add_gradient(weights, digit, gradients_[self]);
        }
    }

    // The order of a list is that of the quarters: it fixes every bit of the sum.
    void push() {
        std::vector<std::vector<kv::Tensor>> lists(names.size());
        for (Network& gradient : gradients_) {
            const auto tensors = gradient.tensors();
            for (std::size_t i = 0; i < names.size(); i++) {
                lists[i].push_back(tensors[i]);
            }
        }
        store_.push(keys_, lists);
    }

    void finish(int epoch, const Network& weights) {
        const std::size_t seen = order_.size() / batch * batch;
        const double loss = std::accumulate(losses_.begin(), losses_.end(), 0.0);
        losses_.fill(0.0);
        accuracy_ = accuracy(weights, digits_.held_out);
        std::printf("epoch %2d/%d   loss %.4f   accuracy %.4f\n", epoch, epochs_,
                    loss / static_cast<double>(seen), accuracy_);
        std::fflush(stdout);
        shuffle();
    }

    void shuffle() {
        for (std::size_t i = order_.size() - 1; i > 0; i--) {
            std::swap(order_[i], order_[random_.next() % (i + 1)]);
        }
    }

    const Digits& digits_;
    const int epochs_;
    double accuracy_ = 0.0;
    Random random_;
    kv::Store store_{"local"};
    std::vector<kv::Key> keys_;
    std::vector<std::size_t> order_;
    std::array<Network, quarters> gradients_;
    std::array<double, quarters> losses_{};  // summed over the epoch so far
    Meeting meeting_;
};

struct Arguments {
    std::string data;
    int epochs = 30;
};

[[noreturn]] void usage() {
    std::fputs("usage: train_digits DATA [--epochs N]\n"
               "  DATA        table of the digits: 64 pixels and the label in each line\n"
               "  --epochs N  passes over the data, 1 to 10000; default 30\n",
               stderr);
    std::exit(2);
}

Arguments parse_arguments(const std::vector<std::string>& words) {
    Arguments arguments;
    for (std::size_t i = 1; i < words.size(); i++) {
        if (words[i] == "--epochs" && i + 1 < words.size()) {
            const std::string& number = words[++i];
            const char* const end = number.data() + number.size();
            const auto parsed = std::from_chars(number.data(), end, arguments.epochs);
            if (parsed.ptr != end || arguments.epochs < 1 || arguments.epochs > 10000) {
                usage();
            }
        } else if (words[i].rfind('-', 0) == 0 || !arguments.data.empty()) {
            usage();
        } else {
            arguments.data = words[i];
        }
    }
    if (arguments.data.empty()) {
        usage();
    }
    return arguments;
}

}  // namespace

int main(int count, char** words) {
    const Arguments arguments = parse_arguments({words, words + count});
    try {
        const Digits digits = read(arguments.data);
        const double reached = Training(digits, arguments.epochs).run();
        const bool passed = reached >= required_accuracy;
        std::printf("Held-out accuracy: %.4f, required %.2f: %s\n", reached, required_accuracy,
                    passed ? "passed" : "FAILED");
        return passed ? EXIT_SUCCESS : EXIT_FAILURE;
    } catch (const std::exception& exception) {
        std::fprintf(stderr, "train_digits: %s\n", exception.what());
        return EXIT_FAILURE;
    }
}
