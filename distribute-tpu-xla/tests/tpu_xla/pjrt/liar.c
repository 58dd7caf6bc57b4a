// A real plugin, PLUGIN, with one answer that breaks the contract: a program's results without
// their dimensions (NO_DIMENSIONS), or a copy to host memory that goes on without an event
// (NO_EVENT).
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The bytes before the first entry.
#define HEAD 40
#define TO_HOST_BUFFER 70
#define OUTPUT_DIMENSIONS 91

// Both structs of arguments: what comes after size and extension.
struct dimensions {
  size_t size;
  void *extension, *executable;
  size_t num_outputs;
  const void *dims, *dim_sizes;
};
struct to_host {
  size_t size;
  void *extension, *src, *layout, *dst;
  size_t dst_size;
  void *event;
};

static void *(*real_dimensions)(struct dimensions *);
static void *(*real_to_host)(struct to_host *);

static void *no_dimensions(struct dimensions *args) {
  void *error = real_dimensions(args);
  args->dims = NULL;
  return error;
}

struct late {
  char *dst;
  size_t size;
};
static void *write_late(void *argument) {
  struct late *late = argument;
  usleep(200 * 1000);
  memset(late->dst, 0xab, late->size);
  free(late);
  return NULL;
}
static void *no_event(struct to_host *args) {
  if (!args->dst) return real_to_host(args);
  struct late *late = malloc(sizeof *late);
  late->dst = args->dst;
  late->size = args->dst_size;
  pthread_t thread;
  pthread_create(&thread, NULL, write_late, late);
  pthread_detach(thread);
  args->event = NULL;
  return NULL;
}

const void *GetPjrtApi(void) {
  void *library = dlopen(PLUGIN, RTLD_NOW);
  if (!library) return NULL;
  const void *(*get)(void) = (const void *(*)(void))dlsym(library, "GetPjrtApi");
  const char *real = get();
  size_t size;
  memcpy(&size, real, sizeof size);
  char *table = malloc(size);
  memcpy(table, real, size);
  void **entries = (void **)(table + HEAD);
#ifdef NO_DIMENSIONS
  real_dimensions = (void *(*)(struct dimensions *))entries[OUTPUT_DIMENSIONS];
  entries[OUTPUT_DIMENSIONS] = (void *)no_dimensions;
#endif
#ifdef NO_EVENT
  real_to_host = (void *(*)(struct to_host *))entries[TO_HOST_BUFFER];
  entries[TO_HOST_BUFFER] = (void *)no_event;
#endif
  return table;
}
