/* The version of the library, of the header, of Cargo.toml and the number in the soname agree.
 * Usage: version CRATE_VERSION SONAME */

#include <kvstore.h>
#include <stdio.h>
#include <string.h>

static int differ(const char *what, const char *left, const char *right) {
    if (strcmp(left, right) == 0) {
        return 0;
    }
    printf("%s: %s is not %s\n", what, left, right);
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        printf("usage: version CRATE_VERSION SONAME\n");
        return 2;
    }
    char header[64];
    char soname[64];
    snprintf(header, sizeof header, "%d.%d.%d", KV_VERSION_MAJOR, KV_VERSION_MINOR, KV_VERSION_PATCH);
    snprintf(soname, sizeof soname, "libkvstore.so.%u", (unsigned)kv_abi_version());

    int failures = differ("library and header", kv_version(), header);
    failures += differ("library and Cargo.toml", kv_version(), argv[1]);
    failures += differ("library and soname", soname, argv[2]);
    if (kv_abi_version() != KV_ABI_VERSION) {
        printf("kv_abi_version() is not KV_ABI_VERSION\n");
        failures++;
    }
    printf("%d differences\n", failures);
    return failures != 0;
}
