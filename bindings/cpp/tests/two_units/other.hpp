// What the other translation unit of this program offers.
#ifndef OTHER_HPP
#define OTHER_HPP

#include <kvstore.hpp>

kv::Store other_open();
kv::Ticket other_push(kv::Store& store, kv::ConstTensor value);
void other_set_updater(kv::Store& store);
[[noreturn]] void other_fail();

// Addresses that are the same in every translation unit.
const void* other_async();
kv_updater other_trampoline();

#endif  // OTHER_HPP
