// check.hpp - what every test program stands on: two macros, a gate for threads, and a last line.
//
// A failed check prints what is known and ends the program with status 1; a program that reaches
// its end says how many checks passed.
#ifndef CHECK_HPP
#define CHECK_HPP

#include <kvstore.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>

inline std::atomic<long> check_count{0};

// At once, without destructors: other threads may be at work.
[[noreturn]] inline void check_failed(const char* file, int line, const std::string& message) {
    std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, message.c_str());
    std::_Exit(1);
}

inline void check_that(bool passed, const char* text, const char* file, int line) {
    check_count++;
    if (!passed) {
        check_failed(file, line, text);
    }
}

template <class Action>
void check_throws(Action action, kv_status status, const char* part, const char* file, int line) {
    check_count++;
    try {
        action();
    } catch (const kv::Error& error) {
        if (error.status() != status) {
            check_failed(file, line, std::string("expected ") + kv_status_name(status) + ", got " +
                                         kv_status_name(error.status()) + ": " + error.what());
        }
        if (std::strstr(error.what(), part) == nullptr) {
            check_failed(file, line,
                         std::string("\"") + part + "\" is not in \"" + error.what() + "\"");
        }
        return;
    }
    check_failed(file, line, std::string("expected ") + kv_status_name(status) + ", got no error");
}

// The condition must be true.
#define CHECK(condition) check_that(static_cast<bool>(condition), #condition, __FILE__, __LINE__)

// The statement must throw kv::Error with this status, and a message that contains this part.
#define CHECK_THROWS(statement, status, part) \
    check_throws([&] { static_cast<void>(statement); }, status, part, __FILE__, __LINE__)

// Long enough for a loaded machine under valgrind, short enough to see that something hangs.
inline constexpr std::chrono::seconds patience{60};

// Closed until it is opened, once; lets threads wait for each other, never for ever.
class Gate {
public:
    void open() {
        const std::lock_guard<std::mutex> lock(mutex_);
        opened_ = true;
        changed_.notify_all();
    }
    // Says whether the gate was opened in time.
    bool pass() {
        std::unique_lock<std::mutex> lock(mutex_);
        return changed_.wait_for(lock, patience, [this] { return opened_; });
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool opened_ = false;
};

// Runs the tests of a program and prints its last line: `return run("views", [] { ... });`.
template <class Tests>
int run(const char* program, Tests tests) {
    try {
        tests();
    } catch (const std::exception& exception) {
        check_failed(program, 0, std::string("unexpected exception: ") + exception.what());
    }
    std::printf("%s: %ld checks passed\n", program, check_count.load());
    return std::fflush(stdout) == 0 ? 0 : 1;
}

#endif  // CHECK_HPP
