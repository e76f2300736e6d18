/* Times MPI_Allreduce of float32, as kvstore.c does kv_allreduce. */
#include "timing.h"

#include <mpi.h>

static float *from, *to;
static int count;

static void exchange(void) { MPI_Allreduce(from, to, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }

int main(int argc, char **argv) {
    int rank, workers;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &workers);
    for (size_t i = 0; i < SIZES; i++) {
        count = (int)counts[i];
        from = values(rank, counts[i]);
        to = values(0, counts[i]);
        double median = time_of(exchange, counts[i]);
        check(to, workers, counts[i]);
        if (rank == 0) {
            printf("%zu %.2f\n", counts[i] * sizeof(float), median);
        }
        free(from);
        free(to);
    }
    MPI_Finalize();
    return 0;
}
