// A real plugin with a piece missing. The file CONTROL says which plugin, how many entries of its
// table are there, and which of them is NULL.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The bytes before the first entry.
#define HEAD 40

const void *GetPjrtApi(void) {
  char path[4096];
  size_t entries, hole;
  FILE *control = fopen(CONTROL, "r");
  if (!control) return NULL;
  int read = fscanf(control, "%4095s %zu %zu", path, &entries, &hole);
  fclose(control);
  void *library = read == 3 ? dlopen(path, RTLD_NOW) : NULL;
  if (!library) return NULL;
  const void *(*get)(void) = (const void *(*)(void))dlsym(library, "GetPjrtApi");
  const char *real = get();
  size_t size;
  memcpy(&size, real, sizeof size);
  // A copy of exactly the promised size: reading beyond it would be noticed by a sanitizer.
  if (HEAD + entries * sizeof(void *) < size) size = HEAD + entries * sizeof(void *);
  char *table = malloc(size);
  memcpy(table, real, size);
  memcpy(table, &size, sizeof size);
  if (HEAD + (hole + 1) * sizeof(void *) <= size)
    memset(table + HEAD + hole * sizeof(void *), 0, sizeof(void *));
  return table;
}
