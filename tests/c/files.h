/*
 * files.h - a folder of the test program alone, and files in it.
 */
#ifndef FILES_H
#define FILES_H

#include "support.h"

#include <dirent.h>
#include <sys/stat.h>

static char folder_path[200];

/* Makes a folder, and gives the path of a file in it; both live as long as the program. */
static inline const char *new_folder(const char *file) {
    static char path[256];
    const char *parent = getenv("TMPDIR");
    parent = parent != NULL ? parent : "/tmp";
    snprintf(folder_path, sizeof folder_path, "%s/kvstore-XXXXXX", parent);
    CHECK(mkdtemp(folder_path) != NULL);
    snprintf(path, sizeof path, "%s/%s", folder_path, file);
    return path;
}

/* Removes the folder, which must be empty. */
static inline void remove_folder(void) {
    CHECK(rmdir(folder_path) == 0);
}

/* How many files the folder has. */
static inline int count_files(void) {
    DIR *folder = opendir(folder_path);
    CHECK(folder != NULL);
    int count = -2; /* without . and .. */
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

static inline void write_file(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    CHECK(fwrite(bytes, 1, size, file) == size);
    CHECK(fclose(file) == 0);
}

/* Reads a file; free() the bytes. */
static inline unsigned char *read_file(const char *path, size_t *size) {
    struct stat about;
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL && fstat(fileno(file), &about) == 0);
    *size = (size_t)about.st_size;
    unsigned char *bytes = malloc(*size + 1);
    CHECK(bytes != NULL && fread(bytes, 1, *size, file) == *size);
    fclose(file);
    return bytes;
}

/* The file is still these bytes. */
static inline void check_file(const char *path, const unsigned char *bytes, size_t size) {
    size_t found = 0;
    unsigned char *now = read_file(path, &found);
    CHECK(found == size && memcmp(now, bytes, size) == 0);
    free(now);
}

#endif /* FILES_H */
