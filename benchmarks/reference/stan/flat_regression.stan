data {
  int N;
  int D;
  matrix[N, D] x;
  vector[N] y;
}
parameters {
  vector[D] beta;
  real<lower=0> sigma;
}
model {
  y ~ normal(x * beta, sigma);
}
