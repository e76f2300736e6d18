/* The header needs no other, and may come twice. */

#include <kvstore.h>
#include <kvstore.h>

int main(void) {
    return KV_OK;
}
