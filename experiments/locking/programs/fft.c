/* A complex FFT of 1,024 points, forward and back, as often as the argument says (10): the thesis's smallest program.
 *
 * Prints how far the points are from where they began, so that no compiler leaves anything out. */
#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1024 };

static double complex points[N];

static void transform(double complex *x, int back) {
    for (int i = 1, j = 0; i < N; i++) {
        int bit = N >> 1;
        for (; j & bit; bit >>= 1) j ^= bit;
        j ^= bit;
        if (i < j) {
            double complex t = x[i];
            x[i] = x[j];
            x[j] = t;
        }
    }
    for (int length = 2; length <= N; length <<= 1) {
        double complex step = cexp((back ? 2 : -2) * I * M_PI / length);
        for (int i = 0; i < N; i += length) {
            double complex w = 1;
            for (int k = 0; k < length / 2; k++) {
                double complex u = x[i + k], v = x[i + k + length / 2] * w;
                x[i + k] = u + v;
                x[i + k + length / 2] = u - v;
                w *= step;
            }
        }
    }
    if (back)
        for (int i = 0; i < N; i++) x[i] /= N;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 10;
    double far = 0;
    for (int i = 0; i < N; i++) points[i] = sin(i) + I * cos(3 * i);
    for (int n = 0; n < rounds; n++) {
        transform(points, 0);
        transform(points, 1);
    }
    for (int i = 0; i < N; i++) far = fmax(far, cabs(points[i] - (sin(i) + I * cos(3 * i))));
    printf("%g\n", far);
    return far > 1e-6;
}
