// Checkpoints: training that goes on from a file, and files that are refused.
#include "check.hpp"

#include <fstream>
#include <stdlib.h>
#include <unistd.h>

namespace {

using Floats = std::vector<float>;

const Floats gradient{1.0F, -2.0F, 0.5F};

// A folder of this program alone, and the path of a file in it.
class Folder {
public:
    Folder() {
        const char* parent = std::getenv("TMPDIR");
        path_ = std::string(parent != nullptr ? parent : "/tmp") + "/kvstore-XXXXXX";
        CHECK(mkdtemp(path_.data()) != nullptr);
    }
    ~Folder() {
        unlink(file().c_str());
        rmdir(path_.c_str());
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    [[nodiscard]] std::string file() const { return path_ + "/file"; }
    [[nodiscard]] const std::string& path() const { return path_; }

private:
    std::string path_;
};

Floats pulled(kv::Store& store, const kv::AnyKey& key) {
    Floats out(3);
    store.pull(key, kv::view(out));
    return out;
}

// A store with two keys, and an optimizer that has made a step.
kv::Store trained() {
    const Floats ones(3, 1.0F);
    kv::Store store("local");
    store.init({"weight", "bias"}, {kv::view(ones), kv::view(ones)});
    store.set_optimizer("adam", {{"learning_rate", 0.1}, {"wd", 1.0 / 3}});
    store.set_key_hyperparameter("bias", "lr_mult", 0.5);
    store.push({"weight", "bias"}, {kv::view(gradient), kv::view(gradient)});
    return store;
}

void training_goes_on_from_a_file() {
    const Folder folder;
    kv::Store store = trained();
    store.save(folder.file());
    kv::Store other("device");
    other.load(folder.file());
    CHECK(other.keys() == store.keys());
    for (int step = 0; step < 3; step++) {
        for (const char* key : {"weight", "bias"}) {
            CHECK(pulled(other, key) == pulled(store, key));
            store.push(key, kv::view(gradient));
            other.push(key, kv::view(gradient));
        }
    }
}

void files_that_are_refused_change_nothing() {
    const Folder folder;
    const std::string file = folder.file();
    kv::Store store = trained();
    const Floats before = pulled(store, "weight");
    store.save(file);
    CHECK_THROWS(store.load(folder.path()), KV_ERR_IO, "not a file");
    CHECK_THROWS(store.save(folder.path()), KV_ERR_IO, folder.path().c_str());
    CHECK_THROWS(store.load(file + "none"), KV_ERR_IO, "No such file");
    CHECK_THROWS(store.load(std::string_view("a\0b", 3)), KV_ERR_INVALID_ARGUMENT, "NUL");
    CHECK_THROWS(store.save(std::string_view("a\0b", 3)), KV_ERR_INVALID_ARGUMENT, "NUL");
    std::ofstream(file, std::ios::app) << "more";
    CHECK_THROWS(store.load(file), KV_ERR_CORRUPT, "longer than it was");
    std::ofstream(file, std::ios::binary) << std::string("\2\0\0\0\0\0\0\0{}", 10);
    CHECK_THROWS(store.load(file), KV_ERR_UNSUPPORTED, "if it has tensors");
    CHECK(pulled(store, "weight") == before);
    store.close(patience);
    CHECK_THROWS(store.save(file), KV_ERR_CLOSED, "");
    CHECK_THROWS(store.load(file), KV_ERR_CLOSED, "");
}

void values_are_loaded_for_the_keys_that_a_function_names() {
    const Folder folder;
    const std::string header =
        R"({"model.a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},)"
        R"("head":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})";
    const Floats data{1.5F, -2.0F, 3.0F, 4.0F};
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    bytes += header;
    bytes.append(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(float));
    std::ofstream(folder.file(), std::ios::binary) << bytes;
    kv::Store store("local");
    store.load_values(folder.file(), [](std::string_view tensor) -> std::optional<std::string> {
        if (tensor.substr(0, 6) != "model.") {
            return std::nullopt;
        }
        return std::string(tensor.substr(6));
    });
    CHECK(store.keys().size() == 1);
    CHECK(pulled(store, "a") == Floats({1.5F, -2.0F, 3.0F}));
    const kv::KeyNamer fail = [](std::string_view tensor) -> std::optional<std::string> {
        throw std::runtime_error(std::string(tensor) + " has no place");
    };
    CHECK_THROWS(store.load_values(folder.file(), fail), KV_ERR_CALLBACK, "model.a has no place");
    const auto one = [](std::string_view) { return std::optional<std::string>("one"); };
    CHECK_THROWS(store.load_values(folder.file(), one), KV_ERR_INVALID_ARGUMENT, "both named");
    CHECK_THROWS(store.load_values(folder.file(), {}), KV_ERR_INVALID_ARGUMENT, "namer is NULL");
    store.save(folder.file());
    CHECK_THROWS(store.load_values(folder.file(), one), KV_ERR_UNSUPPORTED, "checkpoint");
}

}  // namespace

int main() {
    return run("checkpoints", [] {
        training_goes_on_from_a_file();
        files_that_are_refused_change_nothing();
        values_are_loaded_for_the_keys_that_a_function_names();
    });
}
