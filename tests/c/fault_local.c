/*
 * The library of this label is built without the distributed stores: it refuses their types by name, and has
 * nothing of them inside. A build that another package of the workspace turns them on for would pass every
 * other test.
 */
#include "fault.h"

#include <sys/stat.h>

/* Bytes of the unstripped library: a seventh of what it has with the distributed stores. */
enum { MOST_BYTES = 25 << 20 };

static void distributed_types_are_refused(void) {
    static const char *const types[] = {"dist_sync", "dist_async", "dist_device_sync", "dist"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        kv_store *store = NULL;
        CHECK_STATUS(kv_create(types[i], NULL, &store), KV_ERR_UNSUPPORTED);
        CHECK(store == NULL && error_says("dist"));
    }
}

/* The path of the library in this process. */
static void library_path(char *path, size_t size) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    path[0] = '\0';
    CHECK(maps != NULL);
    while (path[0] == '\0' && fgets(line, sizeof line, maps) != NULL) {
        const char *start = strchr(line, '/');
        if (start != NULL && strstr(start, "/libkvstore.so") != NULL) {
            snprintf(path, size, "%.*s", (int)strcspn(start, "\n"), start);
        }
    }
    fclose(maps);
    CHECK(path[0] != '\0');
}

static void the_library_is_small(void) {
    char path[4096];
    struct stat file;
    library_path(path, sizeof path);
    CHECK(stat(path, &file) == 0);
    CHECK(file.st_size > 1 << 20 && file.st_size < MOST_BYTES);
}

int main(void) {
    distributed_types_are_refused();
    the_library_is_small();
    return check_passed("fault_local");
}
