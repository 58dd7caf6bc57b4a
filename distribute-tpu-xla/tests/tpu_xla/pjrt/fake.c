// False plugins: what each does wrong is chosen when it is compiled.
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#ifndef MAJOR
#define MAJOR 0
#endif
#ifndef MINOR
#define MINOR 90
#endif
// Entries that the table has, and how many bytes of it are said to be there.
#ifndef ENTRIES
#define ENTRIES 128
#endif
#ifndef SIZE
#define SIZE (offsetof(struct api, entries) + ENTRIES * sizeof(void *))
#endif

struct version {
  size_t size;
  void *extension;
  int major, minor;
};
struct api {
  size_t size;
  void *extension;
  struct version version;
  void *entries[128];
};
struct error {
  const char *message;
  unsigned code;
};
// All structs of arguments begin like this.
struct args {
  size_t size;
  void *extension;
  void *fields[12];
};
struct named_value {
  size_t size;
  void *extension;
  const char *name;
  size_t name_size;
  int type;
  long long value;
  size_t value_size;
  void *of_a_newer_version;
};

static struct error *fail(const char *message, unsigned code) {
  struct error *error = malloc(sizeof *error);
  error->message = message;
  error->code = code;
  return error;
}

static void error_destroy(struct args *a) { free(a->fields[0]); }
static void error_message(struct args *a) {
  struct error *error = a->fields[0];
  a->fields[1] = (void *)error->message;
  a->fields[2] = (void *)strlen(error->message);
}
static void *error_code(struct args *a) {
  unsigned code = ((struct error *)a->fields[0])->code;
  memcpy(&a->fields[1], &code, sizeof code);
  return NULL;
}
static void *ok(struct args *a) {
  (void)a;
  return NULL;
}
static void *no_hardware(struct args *a) {
  (void)a;
  return fail("no hardware \xff here", 9);
}
static void *unimplemented(struct args *a) {
  (void)a;
  return fail("not here", 12);
}
static void *attributes(struct args *a) {
  static struct named_value values[3] = {
      {sizeof(struct named_value), NULL, "first", 5, 1, 41, 1, NULL},
      {sizeof(struct named_value), NULL, "odd", 3, 77, 0, 1, NULL},
      {sizeof(struct named_value), NULL, "yes", 3, 4, 1, 1, NULL},
  };
  a->fields[0] = values;
  a->fields[1] = (void *)3;
  return NULL;
}

static struct api api;

#ifndef SYMBOL
#define SYMBOL GetPjrtApi
#endif
const struct api *SYMBOL(void) {
#ifdef NO_TABLE
  return NULL;
#endif
  api.size = SIZE;
  api.version.size = sizeof api.version;
  api.version.major = MAJOR;
  api.version.minor = MINOR;
#ifndef NO_ERRORS
  api.entries[0] = error_destroy;
  api.entries[1] = error_message;
  api.entries[2] = error_code;
#endif
#ifdef INITIALIZE_FAILS
  api.entries[3] = no_hardware;
#elif !defined(NO_INITIALIZE)
  api.entries[3] = ok;
#endif
  api.entries[4] = attributes;
#ifdef CLIENT
  api.entries[10] = CLIENT;
#endif
  api.entries[11] = ok;
  return &api;
}
