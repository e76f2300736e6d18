#include <cstdio>
#include <kvstore.hpp>
#include <vector>

int main() {
    try {
        kv::Store store("local");
        std::vector<float> value(2, 2.0F);
        std::vector<float> out(2, 0.0F);
        store.init(3, kv::view(value));
        store.pull(3, kv::view(out));
        std::printf("pulled %g %g\n", static_cast<double>(out[0]), static_cast<double>(out[1]));
        return 0;
    } catch (const kv::Error& error) {
        std::printf("%s\n", error.what());
        return 1;
    }
}
