// One step of a CUDA library, which is the first of the process to need code on the device. Built once for each library, with
// USE_name defined.
#include "steps.h"

#include <cuda_runtime_api.h>

static void *on_device(const void *values, size_t bytes) {
    void *block;
    OK(cudaMalloc(&block, bytes));
    if (values) OK(cudaMemcpy(block, values, bytes, cudaMemcpyHostToDevice));
    else OK(cudaMemset(block, 0, bytes));
    return block;
}

// Waits for the library's kernels.
static void finish(const char *name) {
    OK(cudaDeviceSynchronize());
    step(name);
}

#if defined(USE_cublas)
#include <cublas_v2.h>

static void use(void) {
    enum { WIDTH = 512 };
    const size_t bytes = WIDTH * WIDTH * sizeof(float);
    float one = 1, zero = 0, *a = on_device(NULL, bytes), *b = on_device(NULL, bytes), *c = on_device(NULL, bytes);
    cublasHandle_t handle;
    step("blocks");
    OK(cublasCreate(&handle));
    step("created");
    OK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, WIDTH, WIDTH, WIDTH, &one, a, WIDTH, b, WIDTH, &zero, c, WIDTH));
    finish("used");
    OK(cublasDestroy(handle));
}

#elif defined(USE_cublasLt)
#include <cublasLt.h>

static void use(void) {
    enum { WIDTH = 512 };
    const size_t bytes = WIDTH * WIDTH * sizeof(float);
    size_t room = 4 * MIB;
    float one = 1, zero = 0, *a = on_device(NULL, bytes), *b = on_device(NULL, bytes), *c = on_device(NULL, bytes);
    void *workspace = on_device(NULL, room);
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t layout;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t chosen;
    int found = 0;
    step("blocks");
    OK(cublasLtCreate(&handle));
    step("created");
    OK(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    OK(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, WIDTH, WIDTH, WIDTH));
    OK(cublasLtMatmulPreferenceCreate(&preference));
    OK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room));
    OK(cublasLtMatmulAlgoGetHeuristic(handle, product, layout, layout, layout, layout, preference, 1, &chosen, &found));
    if (!found) failed("cublasLtMatmulAlgoGetHeuristic", found, __FILE__, __LINE__);
    OK(cublasLtMatmul(handle, product, &one, a, layout, b, layout, &zero, c, layout, c, layout, &chosen.algo, workspace, room, NULL));
    finish("used");
    OK(cublasLtDestroy(handle));
}

#elif defined(USE_cufft)
#include <cufft.h>

static void use(void) {
    enum { LENGTH = 1 << 20 };
    cufftComplex *signal = on_device(NULL, LENGTH * sizeof(cufftComplex));
    cufftHandle plan;
    step("blocks");
    OK(cufftPlan1d(&plan, LENGTH, CUFFT_C2C, 1));
    step("created");
    OK(cufftExecC2C(plan, signal, signal, CUFFT_FORWARD));
    finish("used");
    OK(cufftDestroy(plan));
}

#elif defined(USE_cusolver)
#include <cusolverDn.h>

static void use(void) {
    enum { WIDTH = 256 };
    static float identity[WIDTH * WIDTH];
    for (int i = 0; i < WIDTH; i++) identity[i * WIDTH + i] = 2;
    float *matrix = on_device(identity, sizeof identity);
    int room = 0, *failures = on_device(NULL, sizeof(int));
    cusolverDnHandle_t handle;
    step("blocks");
    OK(cusolverDnCreate(&handle));
    step("created");
    OK(cusolverDnSpotrf_bufferSize(handle, CUBLAS_FILL_MODE_LOWER, WIDTH, matrix, WIDTH, &room));
    float *workspace = on_device(NULL, (size_t)room * sizeof(float));
    OK(cusolverDnSpotrf(handle, CUBLAS_FILL_MODE_LOWER, WIDTH, matrix, WIDTH, workspace, room, failures));
    finish("used");
    OK(cusolverDnDestroy(handle));
}

#elif defined(USE_cusparse)
#include <cusparse.h>

static void use(void) {
    enum { ROWS = 10000 };
    static int offsets[ROWS + 1], columns[ROWS];
    float one = 1, zero = 0;
    for (int i = 0; i < ROWS; i++) offsets[i + 1] = i + 1, columns[i] = i;
    int *from = on_device(offsets, sizeof offsets), *at = on_device(columns, sizeof columns);
    float *values = on_device(NULL, ROWS * sizeof(float)), *x = on_device(NULL, ROWS * sizeof(float)), *y = on_device(NULL, ROWS * sizeof(float));
    cusparseHandle_t handle;
    cusparseSpMatDescr_t matrix;
    cusparseDnVecDescr_t input, output;
    size_t room = 0;
    step("blocks");
    OK(cusparseCreate(&handle));
    step("created");
    OK(cusparseCreateCsr(&matrix, ROWS, ROWS, ROWS, from, at, values, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
    OK(cusparseCreateDnVec(&input, ROWS, x, CUDA_R_32F));
    OK(cusparseCreateDnVec(&output, ROWS, y, CUDA_R_32F));
    OK(cusparseSpMV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, matrix, input, &zero, output, CUDA_R_32F, CUSPARSE_SPMV_ALG_DEFAULT, &room));
    void *workspace = on_device(NULL, room + 1);
    OK(cusparseSpMV(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, matrix, input, &zero, output, CUDA_R_32F, CUSPARSE_SPMV_ALG_DEFAULT, workspace));
    finish("used");
    OK(cusparseDestroy(handle));
}

#else
#error "define USE_cublas, USE_cublasLt, USE_cufft, USE_cusolver or USE_cusparse"
#endif

int main(void) {
    OK(cudaSetDevice(0));
    OK(cudaFree(NULL));
    step("context");
    use();
    finish("destroyed");
    return 0;
}
