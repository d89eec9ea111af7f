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
  sigma ~ cauchy(0, 2.5);
  y ~ normal(x * beta, sigma);
}
