/* A libcuda.so.1 whose driver does not start: every function returns the error that LOCKSTEP_STUB_CUDA_ERROR names, 100
   (no device) without it. For the real CUDA runtime over it, and what is made of its errors. */
#include <stdlib.h>
#include <string.h>

static int error_of_all(void) {
  const char* const text = getenv("LOCKSTEP_STUB_CUDA_ERROR");
  return text == NULL ? 100 : atoi(text);
}

int cuInit(unsigned flags) {
  (void)flags;
  return error_of_all();
}

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

int cuGetProcAddress(const char* symbol, void** function, int version, unsigned long long flags);
int cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long flags, int* found);

/* The runtime asks for all that it may call once, by name. */
static void* find(const char* symbol) {
  if (strcmp(symbol, "cuDriverGetVersion") == 0) return (void*)&cuDriverGetVersion;
  if (strcmp(symbol, "cuGetProcAddress") == 0) return (void*)&cuGetProcAddress_v2;
  if (strcmp(symbol, "cuGetProcAddress_v2") == 0) return (void*)&cuGetProcAddress_v2;
  return (void*)&cuInit;
}

int cuGetProcAddress(const char* symbol, void** function, int version, unsigned long long flags) {
  (void)version, (void)flags;
  *function = find(symbol);
  return 0;
}

int cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long flags, int* found) {
  if (found != NULL) *found = 0;
  return cuGetProcAddress(symbol, function, version, flags);
}
