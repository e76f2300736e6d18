// Trains a small network on handwritten digits with LibTorch, the C++ interface of PyTorch:
//
//   kvstore run -n 2 -- train_digits digits.csv
//
// Each process computes gradients of its part of a batch, and all step by their mean.
#include <kvstore.hpp>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t pixels = 64;
constexpr std::int64_t batch = 64;
constexpr std::int64_t held_out = 360;
constexpr int epochs = 20;

// 64 pixel values from 0 to 16 and the label, on each line.
torch::Tensor load(const char* path) {
    std::ifstream file(path);
    if (!file) {
        throw std::runtime_error(std::string("cannot open ") + path);
    }
    std::vector<float> values;
    for (std::string line, cell; std::getline(file, line);) {
        for (std::istringstream cells(line); std::getline(cells, cell, ',');) {
            values.push_back(std::stof(cell));
        }
    }
    return torch::tensor(values).view({-1, pixels + 1});
}

// The elements of a dense float32 tensor, which lives as long as its view is used.
kv::Tensor view(const torch::Tensor& tensor) {
    return kv::view(tensor.data_ptr<float>(), {tensor.numel()});
}

// Adds gradients up, each in its place, and divides by the number of processes.
void average(kv::Store& store, const std::vector<torch::Tensor>& parameters) {
    for (const torch::Tensor& each : parameters) {
        const auto gradient = view(each.grad());
        store.allreduce(KV_MEAN, gradient, gradient);
    }
}

void train(kv::Store& store, const torch::Tensor& rows) {
    const std::int64_t rank = store.rank();
    const std::int64_t workers = store.num_workers();
    torch::manual_seed(1);  // All processes begin with the same weights.
    torch::nn::Sequential model(torch::nn::Linear(pixels, 64), torch::nn::ReLU(),
                                torch::nn::Linear(64, 10));
    torch::optim::SGD optimizer(model->parameters(), 0.3);
    const auto inputs = rows.slice(1, 0, pixels) / 16;
    const auto labels = rows.select(1, pixels).to(torch::kLong);
    const std::int64_t trained = rows.size(0) - held_out;
    for (int epoch = 0; epoch < epochs; epoch++) {
        const auto order = torch::randperm(trained);
        for (std::int64_t begin = 0; begin + batch <= trained; begin += batch) {
            const auto mine = order.slice(0, begin + rank, begin + batch, workers);
            optimizer.zero_grad();
            torch::nn::functional::cross_entropy(model->forward(inputs.index_select(0, mine)),
                                                 labels.index_select(0, mine))
                .backward();
            average(store, model->parameters());
            optimizer.step();
        }
    }
    torch::NoGradGuard no_gradients;
    const auto said = model->forward(inputs.slice(0, trained)).argmax(1);
    const double right = said.eq(labels.slice(0, trained)).to(torch::kDouble).mean().item<double>();
    double weights = 0;
    for (const torch::Tensor& each : model->parameters()) {
        weights += each.abs().sum().item<double>();
    }
    std::printf("accuracy %.4f, weights %.3f\n", right, weights);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: train_digits digits.csv\n");
        return EXIT_FAILURE;
    }
    try {
        kv::Store store(std::getenv("KV_ROOT") != nullptr ? "dist_sync" : "local");
        train(store, load(argv[1]));
        store.close(std::chrono::seconds(60));
        return EXIT_SUCCESS;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return EXIT_FAILURE;
    }
}
