/*
 * json.h - a checker of RFC 8259 in one pass, and the members of an object by name.
 */
#ifndef JSON_H
#define JSON_H

#include "check.h"

#include <ctype.h>
#include <string.h>

/* Each json_..._end() gives the end of what begins at `at`, or NULL if that is not well-formed. */

static inline const char *json_space_end(const char *at) {
    return at + strspn(at, " \t\r\n");
}

static inline const char *json_string_end(const char *at) {
    if (*at++ != '"') {
        return NULL;
    }
    for (; *at != '"'; at++) {
        if ((unsigned char)*at < 0x20) {
            return NULL;
        }
        if (*at == '\\' && *++at == 'u') {
            for (int i = 0; i < 4; i++) {
                if (!isxdigit((unsigned char)*++at)) {
                    return NULL;
                }
            }
        } else if (at[-1] == '\\' && (*at == 0 || strchr("\"\\/bfnrt", *at) == NULL)) {
            return NULL;
        }
    }
    return at + 1;
}

static inline const char *json_digits_end(const char *at) {
    size_t digits = strspn(at, "0123456789");
    return digits > 0 ? at + digits : NULL;
}

static inline const char *json_number_end(const char *at) {
    at += *at == '-';
    at = *at == '0' ? at + 1 : json_digits_end(at);
    if (at != NULL && *at == '.') {
        at = json_digits_end(at + 1);
    }
    if (at != NULL && (*at == 'e' || *at == 'E')) {
        at += 1 + (at[1] == '+' || at[1] == '-');
        at = json_digits_end(at);
    }
    return at;
}

static inline const char *json_value_end(const char *at);

/* One `"name": value` of an object, or one value of an array. */
static inline const char *json_item_end(const char *at, int named) {
    at = json_space_end(at);
    if (named) {
        at = json_string_end(at);
        at = at != NULL ? json_space_end(at) : NULL;
        if (at == NULL || *at++ != ':') {
            return NULL;
        }
    }
    at = json_value_end(at);
    return at != NULL ? json_space_end(at) : NULL;
}

static inline const char *json_list_end(const char *at, char close) {
    const char *inner = json_space_end(at + 1);
    if (*inner == close) {
        return inner + 1;
    }
    do {
        at = json_item_end(at + 1, close == '}');
    } while (at != NULL && *at == ',');
    return at != NULL && *at == close ? at + 1 : NULL;
}

static inline const char *json_value_end(const char *at) {
    static const char *const words[] = {"true", "false", "null"};
    at = json_space_end(at);
    switch (*at) {
    case '{': return json_list_end(at, '}');
    case '[': return json_list_end(at, ']');
    case '"': return json_string_end(at);
    default: break;
    }
    for (int i = 0; i < 3; i++) {
        if (strncmp(at, words[i], strlen(words[i])) == 0) {
            return at + strlen(words[i]);
        }
    }
    return json_number_end(at);
}

/* True if the text is one well-formed object and nothing else. */
static inline int json_is_object(const char *text) {
    const char *end = json_space_end(text);
    end = *end == '{' ? json_value_end(end) : NULL;
    return end != NULL && *json_space_end(end) == 0;
}

/* The value of a member of the outermost object, or NULL. The text must be an object. */
static inline const char *json_member(const char *text, const char *name) {
    const char *at = json_space_end(text);
    size_t len = strlen(name);
    while (*at == '{' || *at == ',') {
        const char *begin = json_space_end(at + 1);
        const char *end = *begin == '"' ? json_string_end(begin) : NULL;
        if (end == NULL) {
            return NULL;
        }
        if ((size_t)(end - begin) == len + 2 && strncmp(begin + 1, name, len) == 0) {
            return json_space_end(json_space_end(end) + 1);
        }
        at = json_item_end(begin, 1);
    }
    return NULL;
}

/* A member that must be there and must be a number. */
static inline double json_number(const char *text, const char *name) {
    CHECK(json_is_object(text));
    const char *value = json_member(text, name);
    CHECK(value != NULL && json_number_end(value) != NULL);
    return strtod(value, NULL);
}

/* True if a member is there and is this string; for texts that need no escapes. */
static inline int json_text_is(const char *text, const char *name, const char *wanted) {
    CHECK(json_is_object(text));
    const char *value = json_member(text, name);
    const char *end = value != NULL ? json_string_end(value) : NULL;
    return end != NULL && (size_t)(end - value) == strlen(wanted) + 2 &&
           strncmp(value + 1, wanted, strlen(wanted)) == 0;
}

#endif /* JSON_H */
