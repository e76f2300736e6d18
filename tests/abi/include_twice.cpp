// The C++ header needs no other, and may come twice.

#include <kvstore.hpp>
#include <kvstore.hpp>

int main() {
    return KV_OK;
}
